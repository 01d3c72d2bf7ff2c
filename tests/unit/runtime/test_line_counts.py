"""How often lines run in a step, counted by Python's own tracing in one step."""

import sys
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch

from tlkit.runtime.instrument.code import line_counts
from tlkit.runtime.instrument.code.line_counts import LineCounter
from tlkit.timeline.record import recorder

ROUNDS = 50


def looping() -> int:
    total = 0
    for number in range(ROUNDS):
        total += number
    return total


def other() -> int:
    return looping()


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineCounter]:
    """With nobody else tracing, not even what measures the coverage of these tests, and nothing compiled."""
    before = sys.gettrace()
    sys.settrace(None)
    monkeypatch.setattr(recorder, "is_timeline_on", lambda: True)
    monkeypatch.delitem(sys.modules, line_counts._DYNAMO, raising=False)
    yield LineCounter()
    sys.settrace(before)


def counted(counter: LineCounter, first_step: int = 3, steps: int = 3) -> dict[tuple[str, int], int]:
    """By function and line, counted from that of the function, what is told after some steps."""
    counter.ask([looping.__code__])
    for number in range(first_step, first_step + steps):
        if counter.is_wanted:
            counter.step_begins(number)
        other()
    return {(one.code.co_name, one.line - one.code.co_firstlineno): one.times for one in counter.take()}


def test_the_lines_of_a_function_are_counted(counter: LineCounter) -> None:
    """In one step, and nothing of other functions; nobody traces after it."""
    told = counted(counter)

    assert told == {("looping", 1): 1, ("looping", 2): ROUNDS + 1, ("looping", 3): ROUNDS, ("looping", 4): 1}
    assert sys.gettrace() is None
    assert not counter.is_wanted
    assert not counter.take(), "told once"


def test_what_lines_add_to_autograds_graph_is_counted(counter: LineCounter) -> None:
    """Each line has its own, without that of the lines it calls, and all know what the step added."""
    weight = torch.ones(3, requires_grad=True)

    def scale() -> torch.Tensor:
        return weight * 2

    def loop() -> torch.Tensor:
        total = torch.zeros(3)
        for _ in range(ROUNDS):
            total = total + scale() * 3
        return total

    counter.ask([loop.__code__, scale.__code__])
    counter.step_begins(3)
    (loop().sum() + weight.sum()).backward()
    counter.step_begins(4)
    nodes = {(one.code.co_name, one.line - one.code.co_firstlineno): one.graph_nodes for one in counter.take()}

    of_lines = {("loop", 1): 0, ("loop", 2): 0, ("loop", 3): 2 * ROUNDS, ("loop", 4): 0, ("scale", 1): ROUNDS}
    assert nodes == of_lines
    counter.ask([scale.__code__])
    counter.step_begins(5)
    scale().sum()
    weight.sum()
    counter.step_begins(6)

    assert {one.of_graph_nodes for one in counter.take()} == {3}


def test_steps_in_which_settings_are_looked_at_are_left_alone(counter: LineCounter) -> None:
    """Else the toolkit would take itself for a debugger that somebody left on."""
    counter.ask([looping.__code__])
    counter.step_begins(8)

    assert sys.gettrace() is None
    counter.step_begins(9)
    assert sys.gettrace() is not None
    looping()
    counter.step_begins(10)
    assert counter.take()


def test_a_debugger_is_left_alone(counter: LineCounter) -> None:
    """It keeps what it traces, and nothing is counted."""

    def debugger(frame: FrameType, event: str, arg: object) -> Any:
        return None

    sys.settrace(debugger)

    assert not counted(counter)
    assert sys.gettrace() is debugger


def test_a_debugger_that_comes_in_between_stays(counter: LineCounter) -> None:
    """What it has set is not undone."""

    def debugger(frame: FrameType, event: str, arg: object) -> Any:
        return None

    counter.ask([looping.__code__])
    counter.step_begins(3)
    sys.settrace(debugger)
    counter.step_begins(5)

    assert sys.gettrace() is debugger


def test_compiled_code_is_left_alone(counter: LineCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a tracer it would be compiled again."""
    compiled = SimpleNamespace(counters={"frames": {"total": 1}})
    monkeypatch.setitem(sys.modules, line_counts._DYNAMO, compiled)

    assert not counted(counter)


def test_very_many_lines_are_counted_up_to_a_limit(counter: LineCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is the least that ran."""
    monkeypatch.setattr(line_counts, "MAX_LINES", 21)
    told = counted(counter)

    assert sum(told.values()) == 21
    assert sys.gettrace() is None


def test_what_is_wanted_is_counted_first(counter: LineCounter) -> None:
    """Another wish does not change what is being counted."""
    counter.ask([looping.__code__])
    counter.step_begins(3)
    counter.ask([other.__code__])
    other()
    counter.step_begins(5)

    assert {one.code for one in counter.take()} == {looping.__code__}


def test_nobody_traces_when_the_recording_has_stopped(counter: LineCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever thread, in the middle of the step."""
    counter.ask([looping.__code__])
    counter.step_begins(3)
    looping()
    monkeypatch.setattr(recorder, "is_timeline_on", lambda: False)
    other()

    assert sys.gettrace() is None


def test_another_recording_begins_anew(counter: LineCounter) -> None:
    """What was asked for before is not told in it, and nobody traces on."""
    counter.ask([looping.__code__])
    counter.step_begins(3)
    counter.forget()

    assert sys.gettrace() is None
    assert not counter.is_wanted
    assert not counter.take()
