"""`tl-run` with real processes: output, failure, signals."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .ranks import REPOSITORY, TL_RUN


def start(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """Start tl-run."""
    return subprocess.Popen(
        [*TL_RUN, *arguments],
        env=dict(os.environ) | {"PYTHONPATH": str(REPOSITORY)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> tuple[int, str, str]:
    """Run tl-run to its end."""
    process = start(*arguments, cwd=cwd, **environment)
    stdout, stderr = process.communicate(timeout=60)
    return process.returncode, stdout, stderr


def is_running(process_id: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(process_ids: list[int], within_s: float = 10) -> bool:
    """Whether all processes end in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(is_running(process_id) for process_id in process_ids):
            return True
        time.sleep(0.05)
    return False


def test_each_line_says_whose_it_is(tmp_path: Path) -> None:
    """Both streams, also without a last newline, with carriage returns, in UTF-8 cut anywhere; and into files."""
    code = (
        "import os, sys, time\n"
        "for piece in ('one\\n', 'ba', 'r\\r50%\\r', '\\u00e9\\u4e16'):\n"
        "    for byte in piece.encode():\n"
        "        os.write(1, bytes([byte])); time.sleep(0.001)\n"
        "os.write(2, b'oops')\n"
    )
    status, stdout, stderr = run("-np", "1", "--output-filename", str(tmp_path / "out"), sys.executable, "-c", code)
    stdout_lines = stdout.replace("\r", "\n").splitlines()

    assert status == 0
    assert stdout_lines == ["[0]<stdout>:one", "[0]<stdout>:bar", "[0]<stdout>:50%", "[0]<stdout>:é世"]
    assert stderr == "[0]<stderr>:oops\n"
    assert (tmp_path / "out" / "rank.0" / "stderr").read_text() == "[0]<stderr>:oops\n"
    assert "é世" in (tmp_path / "out" / "rank.0" / "stdout").read_text()


@pytest.mark.parametrize(("end", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_the_first_failure_ends_the_job_with_its_own_status(end: str, status: int) -> None:
    """The others are terminated; the failed rank's last words are there."""
    code = f"""
import os, sys, time
if os.environ["HOROVOD_RANK"] == "1":
    print("last words", file=sys.stderr, flush=True)
    {end}
time.sleep(60)
"""
    begun = time.monotonic()
    returned, _, stderr = run("-np", "3", sys.executable, "-c", code)

    assert returned == status
    assert "[1]<stderr>:last words" in stderr
    assert f"Process 1 exit with status code {status}." in stderr
    assert "Terminating remaining workers after failure of Process 1." in stderr
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_the_launcher_ends_no_rank_is_left(number: signal.Signals, status: int) -> None:
    """Neither ranks nor what they have started; a rank that ignores SIGTERM is killed after the grace."""
    code = (
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    launcher = start("-np", "2", sys.executable, "-c", code)
    assert launcher.stdout is not None
    numbers = [int(word) for _ in range(2) for word in launcher.stdout.readline().partition(":")[2].split()]
    launcher.send_signal(number)
    launcher.communicate(timeout=30)
    ranks, children = numbers[::2], numbers[1::2]

    assert launcher.returncode == status
    assert gone(ranks)
    assert gone(children)


def test_ranks_of_a_killed_launcher_may_save(tmp_path: Path) -> None:
    """They are asked to end, as by a launcher that is asked itself."""
    code = (
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        f"    open(os.path.join({str(tmp_path)!r}, os.environ['HOROVOD_RANK']), 'w').close()\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(100)\n"
    )
    launcher = start("-np", "2", sys.executable, "-c", code)
    assert launcher.stdout is not None
    ranks = [int(launcher.stdout.readline().partition(":")[2]) for _ in range(2)]
    launcher.kill()
    launcher.communicate(timeout=30)

    assert gone(ranks)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_command_that_is_not_there_is_said() -> None:
    """As a shell does."""
    status, _, stderr = run("-np", "2", "no-such-command-anywhere")

    assert status == 127
    assert stderr == "tl-run: no-such-command-anywhere: no such command\n"


def test_the_launcher_does_not_load_torch() -> None:
    """It starts in a moment."""
    code = "import sys, tlkit.runtime.launch.cli; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ) | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "False\n"


def test_every_rank_has_its_own_environment_and_no_input() -> None:
    """What the caller's own launcher has left behind does not count."""
    script = (
        'echo "$HOROVOD_RANK/$HOROVOD_SIZE $RANK/$WORLD_SIZE $LOCAL_RANK $HOROVOD_CONTROLLER '
        '$((MASTER_PORT == HOROVOD_GLOO_RENDEZVOUS_PORT)) <$TORCHELASTIC_USE_AGENT_STORE>"; cat'
    )
    stale: dict[str, Any] = {
        "HOROVOD_RANK": "7",
        "RANK": "7",
        "WORLD_SIZE": "9",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    status, stdout, _ = run("-np", "2", "sh", "-c", script, **stale)

    assert status == 0
    assert sorted(stdout.splitlines()) == [f"[{rank}]<stdout>:{rank}/2 {rank}/2 {rank} gloo 1 <>" for rank in (0, 1)]


def test_lines_may_begin_with_the_time() -> None:
    """In the form that log parsers know, whatever the locale."""
    _, stdout, _ = run("-np", "1", "-prefix-timestamp", "echo", "hello", LC_ALL="C.UTF-8")

    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:hello\n", stdout)


def test_output_does_not_depend_on_the_console(tmp_path: Path) -> None:
    """A console that knows only ASCII gets the bytes as they are, and folders sort by rank."""
    status, stdout, _ = run(
        "-np", "11", "--output-filename", "out", "echo", "é", cwd=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )

    assert status == 0
    assert sorted(stdout.splitlines()) == sorted(f"[{rank}]<stdout>:é" for rank in range(11))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"rank.{rank:02d}" for rank in range(11)]
    assert (tmp_path / "out" / "rank.10" / "stdout").read_text(encoding="utf-8") == "[10]<stdout>:é\n"


def test_a_rank_that_prints_without_end_does_not_keep_a_failed_job_alive(tmp_path: Path) -> None:
    """There is always more to read from it; it is terminated all the same."""
    script = 'if [ "$RANK" = 0 ]; then exit 3; fi; exec yes'
    with (tmp_path / "out").open("wb") as sink:
        launcher = subprocess.Popen(
            [*TL_RUN, "-np", "2", "sh", "-c", script],
            env=dict(os.environ) | {"PYTHONPATH": str(REPOSITORY)},
            stdout=sink,
            stderr=subprocess.PIPE,
            text=True,
        )
        _, stderr = launcher.communicate(timeout=30)

    assert launcher.returncode == 3
    assert "Process 0 exit with status code 3." in stderr


def test_ranks_go_on_when_nobody_reads_their_output(tmp_path: Path) -> None:
    """`tl-run … | head -1` ends the reading, not the training."""
    launcher = start(
        "-np", "1", "sh", "-c", "echo one; read -r go < go; echo two; echo three; touch done", cwd=make_fifo(tmp_path)
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "[0]<stdout>:one\n"
    launcher.stdout.close()
    (tmp_path / "go").write_text("go\n")

    assert launcher.wait(timeout=30) == 0
    assert (tmp_path / "done").exists()
    assert launcher.stderr is not None
    assert launcher.stderr.read() == ""
    launcher.stderr.close()


def make_fifo(folder: Path) -> Path:
    """A folder with a pipe `go` in it, on which a rank waits for the test."""
    os.mkfifo(folder / "go")
    return folder


def test_ctrl_c_reaches_the_ranks_as_ctrl_c() -> None:
    """A script that saves a checkpoint on KeyboardInterrupt does so under tl-run too."""
    code = (
        "import time\n"
        "try:\n"
        "    print('training', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('saved')\n"
    )
    launcher = start("-np", "2", sys.executable, "-c", code)
    assert launcher.stdout is not None
    assert {launcher.stdout.readline() for _ in range(2)} == {f"[{rank}]<stdout>:training\n" for rank in (0, 1)}
    launcher.send_signal(signal.SIGINT)
    stdout, _ = launcher.communicate(timeout=30)

    assert launcher.returncode == 130
    assert sorted(stdout.splitlines()) == ["[0]<stdout>:saved", "[1]<stdout>:saved"]


def test_a_second_signal_ends_the_grace() -> None:
    """Who presses Ctrl-C twice does not wait for a rank that does not listen."""
    launcher = start("-np", "1", "sh", "-c", "trap 'echo heard' TERM; echo ready; while :; do sleep 0.05; done")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "[0]<stdout>:ready\n"
    launcher.send_signal(signal.SIGTERM)
    assert launcher.stdout.readline() == "[0]<stdout>:heard\n"
    begun = time.monotonic()
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=30)

    assert launcher.returncode == 143
    assert time.monotonic() - begun < 4  # the grace is 5 s


def test_nohup_protects_the_job(tmp_path: Path) -> None:
    """A hang-up that the caller ignores ends neither tl-run nor its ranks."""
    launcher = subprocess.Popen(
        [
            *("sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-m", "tlkit.runtime.launch.cli"),
            *("-np", "1", "sh", "-c", "echo ready; read -r go < go; echo survived"),
        ],
        env=dict(os.environ) | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
        cwd=make_fifo(tmp_path),
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "[0]<stdout>:ready\n"
    launcher.send_signal(signal.SIGHUP)
    (tmp_path / "go").write_text("go\n")
    stdout, _ = launcher.communicate(timeout=30)

    assert (launcher.returncode, stdout) == (0, "[0]<stdout>:survived\n")


def test_what_a_rank_leaves_behind_ends_with_it() -> None:
    """A background process that holds the output open does not keep tl-run waiting, nor stay."""
    status, stdout, _ = run("-np", "2", "sh", "-c", "sleep 100 & echo $!")

    assert status == 0
    assert gone([int(line.partition(":")[2]) for line in stdout.splitlines()])


def test_a_folder_for_output_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """Before anything is started."""
    (tmp_path / "file").touch()
    status, stdout, stderr = run("-np", "1", "--output-filename", "file/out", "echo", "started", cwd=tmp_path)

    assert (status, stdout) == (2, "")
    assert stderr.startswith("tl-run: --output-filename file/out: cannot write file/out/rank.0: Not a directory")
