"""Steps of which only sums are recorded: as exact as the full recording, small, and read for what they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.collector.model.breakdown import IDLE, break_down
from tlkit.collector.model.steps import find_steps
from tlkit.timeline import open_trace
from tlkit.timeline.model.step_sums import PARTS, WAIT
from tlkit.timeline.record.sampled_format import NO_STEP, SampledFormat, Sampling
from tlkit.timeline.record.shard_format import Call, ShardClock, ShardFormat, ShardHeader, TensorLife
from tlkit.timeline.vocabulary import LANE_TIDS, STEP, SYNCHRONIZE, LaneKind

COMPUTE, DATA, STEPS = (LANE_TIDS[kind] for kind in (LaneKind.COMPUTE, LaneKind.DATA, LaneKind.STEPS))
HEADER = ShardHeader(
    run_id="r",
    rank=0,
    size=1,
    local_rank=0,
    host="h",
    boot_id="b",
    process_id=1,
    device="cpu",
    clock=ShardClock(origin_ns=0, origin_unix_ns=0),
)
MS = 1_000_000

#: Name, category and lane of what a training thread does.
KINDS = (
    ("DATA_WAIT", "data", DATA),
    ("H2D_COPY", "h2d", COMPUTE),
    ("FORWARD", "forward", COMPUTE),
    ("BACKWARD", "backward", COMPUTE),
    (SYNCHRONIZE, "other", COMPUTE),
    ("OPTIMIZER_STEP", "optimizer", COMPUTE),
    ("CHECKPOINT", "checkpoint", COMPUTE),
)

Nested = tuple[int, int, int, list[Any]]
"""Kind, pause before it and own time (µs), and what lies in it."""

activities: st.SearchStrategy[Nested] = st.recursive(
    st.tuples(st.integers(0, len(KINDS) - 1), st.integers(0, 300), st.integers(1, 500), st.just([])),
    lambda inner: st.tuples(
        st.integers(0, len(KINDS) - 1), st.integers(0, 300), st.integers(1, 500), st.lists(inner, max_size=3)
    ),
    max_leaves=8,
)


def tell(form: ShardFormat, activity: Nested, at_ns: int) -> tuple[str, int]:
    """The lines of an activity and all in it, in the order in which they end, and when it ends."""
    kind, pause_us, own_us, inside = activity
    name, category, lane = KINDS[kind]
    start_ns = at_ns + pause_us * 1000
    text, reached = "", start_ns + own_us * 500
    for each in inside:
        lines, reached = tell(form, each, reached)
        text += lines
    end_ns = reached + own_us * 500
    return text + form.span(name, category, lane, start_ns, end_ns, None), end_ns


def record(form: ShardFormat, steps: list[list[Nested]]) -> str:
    """A shard of steps that follow each other."""
    text, at_ns = "[\n" + "".join(form.head()), 5_000
    for number, activities_of_step in enumerate(steps):
        start_ns = at_ns
        for activity in activities_of_step:
            lines, at_ns = tell(form, activity, at_ns)
            text += lines
        at_ns += 7_000
        text += form.span(STEP, "step", STEPS, start_ns, at_ns, {"step": number})
    return (text + form.finish(1, 0)).removesuffix(",\n") + "\n]\n"


@given(steps=st.lists(st.lists(activities, min_size=1, max_size=4), min_size=4, max_size=6))
def test_sums_are_the_breakdown_of_the_full_recording(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[Nested]]
) -> None:
    """The same training recorded in full and as sums has the same parts, to the microsecond."""
    folder = tmp_path_factory.mktemp("sums")
    parts = []
    for name, form in (("full", ShardFormat(HEADER)), ("sums", SampledFormat(HEADER, NO_STEP))):
        path = folder / f"{name}.json"
        path.write_text(record(form, steps))
        trace = open_trace(path)
        parts.append(break_down(trace, find_steps(trace, warm_up=0)).parts_ns)
    full, sums = parts

    for part in full:
        np.testing.assert_allclose(sums[part], full[part], atol=10_000 if part == "other" else 1_000, err_msg=part)


def test_a_step_takes_less_than_a_hundred_bytes() -> None:
    """However many spans it has."""
    form = SampledFormat(HEADER, NO_STEP, clock=lambda: 0.0)
    steps: list[list[Nested]] = [[(kind % 7, 100, 90_000 + kind, []) for kind in range(60)] for _ in range(400)]

    assert len(record(form, steps)) - sum(map(len, form.head())) < 100 * len(steps)


def test_five_of_every_twenty_steps_are_in_full(tmp_path: Path) -> None:
    """The others are told as sums, and no step is lost."""
    path = tmp_path / "t.json"
    path.write_text(record(SampledFormat(HEADER, Sampling(20, 5)), [[(2, 0, 1000, []), (4, 0, 500, [])]] * 50))
    trace = open_trace(path)

    assert trace.meta.knows_order
    assert trace.steps["step"].tolist() == [number for number in range(50) if number % 20 < 5]
    assert trace.sums["step"].tolist() == [number for number in range(50) if number % 20 >= 5]
    assert set(trace.sums["forward_ns"]) == {1_000_000}
    assert set(trace.sums[f"{WAIT}_ns"]) == {500_000}
    assert len(trace.spans[trace.spans["name"] == "FORWARD"]) == len(trace.steps)


def test_steps_stand_where_they_were(tmp_path: Path) -> None:
    """Pauses between steps are kept: a loop that did something else in between."""
    form = SampledFormat(HEADER, NO_STEP)
    text = "[\n" + "".join(form.head())
    begins = [0, 10 * MS, 500 * MS, 510 * MS]
    for number, begin in enumerate(begins):
        text += form.span("FORWARD", "forward", COMPUTE, begin, begin + 2 * MS, None)
        text += form.span(STEP, "step", STEPS, begin, begin + 9 * MS, {"step": number})
    path = tmp_path / "t.json"
    path.write_text((text + form.finish(1, 0)).removesuffix(",\n") + "\n]\n")

    assert open_trace(path).steps["start_ns"].tolist() == begins


def test_what_hangs_is_written_at_any_level() -> None:
    """A span that is open at a flush, and a tensor that waits, are begun in the file, and ended there."""
    form = SampledFormat(HEADER, NO_STEP)
    life = TensorLife(1, "allreduce.x", "allreduce", 8, "float32", (2,), 0, False, Call("user", blocking=True))

    assert '"ph":"B"' in form.begin(SYNCHRONIZE, "other", COMPUTE, 0, None)
    assert '"ph":"b"' in form.life_begin(life, 0)
    life.claim()
    assert '"ph":"E"' in form.end(SYNCHRONIZE, "other", COMPUTE, 3 * MS, None)
    assert '"ph":"e"' in form.lives([life], 0, 0, (1, 2, 3))
    form.span(STEP, "step", STEPS, 0, 4 * MS, {"step": 0})
    assert json.loads(form.pending().removesuffix(",\n"))["args"]["us"][0][2 + PARTS.index(WAIT)] == 3000


@pytest.mark.parametrize(
    "args",
    [
        {"first": 0, "parts": ["forward"], "us": [[0, 5]]},
        {"first": 0, "parts": ["forward"], "us": [[0, 5, 9]]},
        {"first": 0, "parts": ["forward"], "us": [[0, -5, 0]]},
        {"first": 0, "parts": ["forward"], "us": [[0, 2**70, 1]]},
        {"first": 0, "parts": "forward", "us": [[0, 5, 1]]},
        {"first": 0, "parts": ["forward"], "us": "many"},
        {"first": 0, "parts": ["forward"], "us": [["a", 5, 1]]},
        {"first": 0, "parts": ["forward"], "us": [[0, 5, 1], [0, 5]]},
    ],
)
def test_sums_without_sense_are_counted(tmp_path: Path, args: dict[str, Any]) -> None:
    """They are left out; the rest is read."""
    form = SampledFormat(HEADER, NO_STEP)
    text = record(form, [[(2, 0, 1000, [])]] * 5)
    wrong = form.metadata("tlkit_steps", args, at_ns=0)
    path = tmp_path / "t.json"
    path.write_text(text.replace('{"name":"tlkit_end"', wrong + '{"name":"tlkit_end"'))
    trace = open_trace(path)

    assert trace.meta.dropped == {"sums_without_sense": 1}
    assert len(trace.steps) == 5


def test_unknown_parts_of_a_later_version_are_left_in_the_rest(tmp_path: Path) -> None:
    """A part that this version does not know is time of `other`."""
    form = SampledFormat(HEADER, NO_STEP)
    rows = [[0, 10_000, 4_000, 3_000] for _ in range(5)]
    line = form.metadata("tlkit_steps", {"first": 0, "parts": ["forward", "prefill"], "us": rows}, at_ns=0)
    path = tmp_path / "t.json"
    path.write_text("[\n" + "".join(form.head()) + line.removesuffix(",\n") + "\n]\n")
    trace = open_trace(path)
    parts = break_down(trace, find_steps(trace, warm_up=0)).parts_ns

    assert parts["forward"].tolist() == [[4 * MS] * 5]
    assert parts["other"].tolist() == [[6 * MS] * 5]
    assert not parts[IDLE].any()
