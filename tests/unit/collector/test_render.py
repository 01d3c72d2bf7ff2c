"""The report for people, word for word."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.traces import Parts, make_trace, uniform
from tlkit.collector import analyze, make_report
from tlkit.collector.reports.summary import summarize
from tlkit.collector.reports.terminal import render

GOLDEN = Path(__file__).resolve().parents[2] / "golden"

STEP = {
    "data": 1,
    "forward": 30,
    "backward": 50,
    "wait:negotiate": 40,
    "wait:collective": 10,
    "optimizer": 4,
    "host": 5,
}


def straggling() -> list[list[Parts]]:
    """Rank 1 needs 40 ms more for forward, and rank 0 waits for it."""
    steps = uniform(2, 20, STEP)
    slow = STEP | {"forward": 70, "wait:negotiate": 0}
    steps[1] = [list(slow.items()) for _ in range(20)]
    return steps


def loading() -> list[list[Parts]]:
    """Every rank waits 80 ms for a batch."""
    return uniform(2, 20, STEP | {"data": 80, "wait:negotiate": 0})


@pytest.mark.parametrize(("name", "steps"), [("straggler", straggling()), ("slow-loader", loading())])
def test_reports_are_what_they_were(name: str, steps: list[list[Parts]]) -> None:
    """A change of the text is a change of the golden file, seen by whoever reviews it."""
    analysis = analyze(make_trace(steps))
    stream = io.StringIO()
    render(summarize(analysis), Console(file=stream, width=110, color_system=None, highlight=False))
    printed = "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"

    assert printed == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_the_report_for_programs_is_what_it_was() -> None:
    """All keys and all numbers of a trace made by hand."""
    report = make_report(analyze(make_trace(straggling())))

    assert json.loads(json.dumps(report)) == json.loads((GOLDEN / "straggler.json").read_text(encoding="utf-8"))
