"""Runs to ask: hand-made traces as the timeline's server side has them."""

from dataclasses import replace

from tests.traces import MS, make_trace
from tlkit.collector import analyze
from tlkit.dashboard.timeline.run import Run
from tlkit.timeline.model.trace import SPAN_COLUMNS, Trace, make_table

#: Of two ranks the second works 30 ms longer; the first waits for it.
STEPS = 8
FAST = [
    ("data", 2.0),
    ("forward", 10.0),
    ("backward", 20.0),
    ("wait:negotiate", 30.0),
    ("wait:collective", 5.0),
    ("optimizer", 3.0),
]
SLOW = [("data", 2.0), ("forward", 40.0), ("backward", 20.0), ("wait:collective", 5.0), ("optimizer", 3.0)]
STEP_MS = 70


def slow_rank() -> Trace:
    return make_trace([[FAST] * STEPS, [SLOW] * STEPS])


def with_spans(trace: Trace, rows: list[tuple[object, ...]], raw_args: tuple[bytes, ...] = ()) -> Trace:
    """A trace with other spans, each as SPAN_COLUMNS say."""
    columns = {name: [row[number] for row in rows] for number, name in enumerate(SPAN_COLUMNS)}
    return replace(trace, spans=make_table(SPAN_COLUMNS, columns), raw_args=raw_args)


def run_of(trace: Trace) -> Run:
    return Run(analyze(trace))


__all__ = ["MS", "STEPS", "STEP_MS", "run_of", "slow_rank", "with_spans"]
