"""Dumps that torch itself has just written, of real ranks of which one leaves out a collective."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tlkit.collector import analyze

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "samples" / "formats" / "flight-recorder" / "train.py"


def test_the_rank_that_left_out_a_collective_is_named(tmp_path: Path) -> None:
    """The job of the sample, recorded anew."""
    launcher = [
        sys.executable,
        "-m",
        "tlkit.runtime.launch.cli",
        "-np",
        "3",
        sys.executable,
        str(PROGRAM),
        str(tmp_path),
    ]
    subprocess.run(launcher, check=True, timeout=100, capture_output=True)
    analysis = analyze(tmp_path)
    assert len(analysis.trace.meta.files) == 3
    assert (analysis.verdict.cause, analysis.verdict.ranks) == ("hung", (1,))
    assert "allreduce #6 of group 0 (default_pg) at train.py:" in analysis.verdict.sentence
