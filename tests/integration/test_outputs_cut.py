"""Commands whose output is cut, closed, full or plain: they end as they would have, and quietly."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TRACE = REPOSITORY / "samples" / "traces" / "slow-rank" / "t.json.gz"
ANALYZE = (sys.executable, "-m", "tlkit.collector.commands.analyze", TRACE)
DIFF = (sys.executable, "-m", "tlkit.collector.commands.diff", TRACE, TRACE)
INFO = (sys.executable, "-m", "tlkit.timeline.commands.trace", "info", TRACE)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (ANALYZE, 0),
        ((*ANALYZE, "--fail-on", "exposed_comm>1%"), 1),
        ((*ANALYZE, "--fail-on", "exposed_comm>99%"), 0),
        ((*ANALYZE, "--json", "-"), 0),
        (DIFF, 0),
        (INFO, 0),
        ((*INFO, "--json"), 0),
    ],
    ids=["analyze", "gate that holds", "gate that does not", "json", "diff", "info", "info as json"],
)
def test_a_pipe_that_nobody_reads_changes_no_status(command: tuple[str, ...], status: int) -> None:
    """As `| true` leaves it: nothing is printed about it, and 1 means a gate still."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_a_full_disk_behind_the_output_is_one_line() -> None:
    """What was not written is not taken for success."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(ANALYZE, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "tl-analyze: cannot write the output: No space left on device\n"


def test_without_standard_output_there_is_a_status_still() -> None:
    """As `>&-` starts it."""
    closing = ("sh", "-c", '"$@" >&-', "sh", *map(str, ANALYZE), "--fail-on", "exposed_comm>1%")
    done = subprocess.run(closing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


SLOW_READING = """
import sys
from tlkit.timeline.commands import progress
progress.PATIENCE_S = 0
with progress.ProgressBar() as bar:
    for done in range(50):
        bar.update(done, 50)
from tlkit.collector.commands.analyze import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("no_color", [True, False])
def test_no_color_leaves_no_escape_code_on_a_terminal(no_color: bool) -> None:
    """Neither colours nor the codes that move a progress bar; without it there are both."""
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment |= {"NO_COLOR": "1"} if no_color else {}
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_READING, TRACE], stdin=end, stdout=end, stderr=end, env=environment
    ) as process:
        os.close(end)
        printed = b""
        while True:
            try:
                more = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            printed += more
    os.close(terminal)
    assert process.returncode == 0
    assert b"straggler" in printed
    assert (b"\x1b" in printed) == (not no_color)
