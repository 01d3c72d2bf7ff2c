"""`tl-run` with real processes: output, failure, signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def start(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start tl-run."""
    return subprocess.Popen(
        [sys.executable, "-m", "tlkit.runtime.launch.cli", *arguments],
        env=dict(os.environ) | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def run(*arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
    """Run tl-run to its end."""
    process = start(*arguments, cwd=cwd)
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
    if number is signal.SIGKILL:  # nobody is left to end the ranks' own children
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert gone(children)


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
