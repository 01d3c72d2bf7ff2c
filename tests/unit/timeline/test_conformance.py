"""The checker of the Trace Event Format sees what viewers would get wrong."""

import json

import pytest

from tlkit.timeline.commands.conformance import check_trace_events

SPAN = {"name": "a", "cat": "c", "ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 10}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([{**SPAN, "dur": -1}], "dur is not a number"),
        ([{**SPAN, "ph": "?"}], "unknown phase"),
        ([{key: value for key, value in SPAN.items() if key != "tid"}], "no pid or tid"),
        ([SPAN, {**SPAN, "ts": 5}], "sticks out"),
        ([{**SPAN, "ph": "B"}], "never ends"),
        ([{**SPAN, "ph": "E"}], "without a begin"),
        ([{**SPAN, "ph": "B"}, {**SPAN, "ph": "E", "name": "b", "ts": 3}], "is ended by 'b'"),
        ([{**SPAN, "ph": "b"}], "no id"),
        ([{**SPAN, "ph": "b", "id": 1}], "never ends"),
        ([SPAN, {**SPAN, "ph": "s", "id": 1, "ts": 5}], "never finishes"),
        ([SPAN, {**SPAN, "ph": "s", "id": 1, "ts": 5}, {**SPAN, "ph": "f", "id": 1, "ts": 15}], "no span of lane"),
        ([{**SPAN, "ph": "C", "args": {"v": "x"}}], "not all numbers"),
        ([7], "not an object"),
    ],
)
def test_each_rule_is_checked(events: list[object], problem: str) -> None:
    """One violation, one message."""
    (found,) = check_trace_events(json.dumps(events).encode())

    assert problem in found


def test_good_files_pass_closed_or_not() -> None:
    """Nested, neighbouring and instantaneous spans; flows inside them."""
    events = [
        SPAN,
        {**SPAN, "ts": 2, "dur": 3},
        {**SPAN, "ts": 5, "dur": 5},
        {**SPAN, "ts": 10, "dur": 0},
        {**SPAN, "ph": "s", "id": 1, "ts": 1},
        {**SPAN, "ph": "f", "bp": "e", "id": 1, "ts": 6},
    ]
    text = json.dumps(events)

    assert check_trace_events(text.encode()) == []
    assert check_trace_events((text[:-1] + ",\n").encode()) == []


@pytest.mark.parametrize("text", ["", "nothing", '{"a": 1}', '[{"ts": NaN}]', "[\xff"])
def test_what_is_no_json_is_said(text: str) -> None:
    """One message, no exception."""
    assert len(check_trace_events(text.encode("latin-1"))) == 1
