"""Steps of which only sums are recorded: as exact as the full recording, small, and read for what they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.collector.model.breakdown import IDLE, break_down
from tlkit.collector.model.cpu_time import CpuTime, read_cpu_time
from tlkit.collector.model.host_load import HostLoad, find_host_load
from tlkit.collector.model.steps import find_steps
from tlkit.timeline import open_trace
from tlkit.timeline.formats import tlkit_sums
from tlkit.timeline.model.step_loads import LOADS
from tlkit.timeline.model.step_sums import PARTS, WAIT
from tlkit.timeline.record.sampled_format import NO_STEP, SampledFormat, Sampling
from tlkit.timeline.record.shard_format import Call, ShardClock, ShardFormat, ShardHeader, TensorLife
from tlkit.timeline.vocabulary import (
    CPU_COUNTERS,
    HOST_CORES,
    HOST_CPU,
    LANE_TIDS,
    PROCESS_CPU,
    PROCESS_CPU_COUNTER,
    STARVED_COUNTERS,
    STEP,
    SYNCHRONIZE,
    Category,
    LaneKind,
)

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


def loaded(form: ShardFormat, count: int, *, starved: bool = True) -> str:
    """A shard of steps of 100 ms whose training thread runs for 40 ms of forward's 60 and lacks a core for 15, with all counters."""
    text = "[\n" + "".join(form.head())
    for number in range(count):
        at_ns = number * 100 * MS
        end_ns = at_ns + 60 * MS
        text += form.span("FORWARD", "forward", COMPUTE, at_ns, end_ns, None)
        text += form.counter(CPU_COUNTERS[Category.FORWARD], end_ns, (40 + number % 7) * MS)
        if starved:
            text += form.counter(STARVED_COUNTERS[Category.FORWARD], end_ns, 15 * MS)
        text += form.counter(HOST_CPU, end_ns, 90.0) + form.counter(HOST_CORES, end_ns, 2)
        text += form.counter(PROCESS_CPU, end_ns, 70.0)
        text += form.span(STEP, "step", STEPS, at_ns, at_ns + 100 * MS, {"step": number})
        text += form.counter(CPU_COUNTERS[Category.OTHER], at_ns + 100 * MS, 10 * MS)
        if starved:
            text += form.counter(STARVED_COUNTERS[Category.OTHER], at_ns + 100 * MS, 3 * MS)
        text += form.counter(PROCESS_CPU_COUNTER, at_ns + 100 * MS, 70 * MS)
    return (text + form.finish(1, 0)).removesuffix(",\n") + "\n]\n"


def load_of(path: Path, text: str) -> tuple[CpuTime, HostLoad | None]:
    """What the analysis reads of it."""
    path.write_text(text)
    trace = open_trace(path)
    steps = find_steps(trace, warm_up=0)
    return read_cpu_time(trace, steps), find_host_load(trace, steps)


def test_the_load_of_sums_is_that_of_the_full_recording(tmp_path: Path) -> None:
    """What the thread ran and lacked, in each part of each step, and what others had of the host."""
    full, load = load_of(tmp_path / "full.json", loaded(ShardFormat(HEADER), 30))
    sums, load_of_sums = load_of(tmp_path / "sums.json", loaded(SampledFormat(HEADER, NO_STEP), 30))

    assert sums.is_known
    assert sums.knows_starved
    for part in full.running_ns:
        np.testing.assert_allclose(sums.running_ns[part], full.running_ns[part], atol=100_000, err_msg=part)
        np.testing.assert_allclose(sums.starved_ns[part], full.starved_ns[part], atol=100_000, err_msg=part)
    np.testing.assert_allclose(sums.process_ns, full.process_ns, atol=100_000)
    assert load is not None
    assert load_of_sums is not None
    assert load_of_sums.busy_ratio == load.busy_ratio == 0.9
    assert load_of_sums.others_ratio == pytest.approx(load.others_ratio)
    assert load_of_sums.starved_ratio == pytest.approx(load.starved_ratio, abs=0.001)


def test_where_the_kernel_does_not_tell_of_waiting_it_is_unknown(tmp_path: Path) -> None:
    """Not nothing."""
    sums, load = load_of(tmp_path / "t.json", loaded(SampledFormat(HEADER, NO_STEP), 10, starved=False))

    assert sums.is_known
    assert not sums.knows_starved
    assert load is not None
    assert load.starved_ratio is None


def test_a_step_with_its_load_takes_less_than_a_hundred_bytes() -> None:
    """The events' beginnings included, where there are more steps than one in an event."""
    form = SampledFormat(HEADER, NO_STEP, clock=lambda: 0.0)

    assert len(loaded(form, 400)) - sum(map(len, form.head())) < 100 * 400


def test_counters_at_the_end_belong_to_the_step_that_has_ended(tmp_path: Path) -> None:
    """The last of the steps in full has all of them, the first has none of a step before it."""
    path = tmp_path / "t.json"
    path.write_text(loaded(SampledFormat(HEADER, Sampling(10, 2)), 30))
    counters = open_trace(path).counters
    at = counters[counters["name"] == PROCESS_CPU_COUNTER]["ts_ns"] // (100 * MS) - 1

    assert at.tolist() == [0, 1, 10, 11, 20, 21]


@pytest.mark.parametrize(
    "load",
    [
        [],
        {"unit_us": 0, "parts": ["data", "forward", "backward", "optimizer", "other"], "rows": [[1] * 6] * 5},
        {"unit_us": 1, "parts": ["forward"], "rows": [[1] * 2] * 5},
        {"unit_us": 1, "parts": ["data", "forward", "backward", "optimizer", "other"], "rows": [[1] * 6] * 4},
        {"unit_us": 2**40, "parts": ["data", "forward", "backward", "optimizer", "other"], "rows": [[2**40] * 6] * 5},
        {"unit_us": 1, "parts": ["data", "forward", "backward", "optimizer", "other"], "rows": [[-1] * 11] * 5},
        {"unit_us": 1, "parts": ["data", "forward", "backward", "optimizer", "other"], "rows": [["x"] * 11] * 5},
    ],
)
def test_a_load_without_sense_is_unknown(tmp_path: Path, load: Any) -> None:
    """The steps are read all the same."""
    form = SampledFormat(HEADER, NO_STEP)
    args = {"first": 0, "parts": ["forward"], "us": [[0, 5000, 3000]] * 5, "load": load, "host": {HOST_CPU: "many"}}
    path = tmp_path / "t.json"
    path.write_text(
        "[\n" + "".join(form.head()) + form.metadata("tlkit_steps", args, at_ns=0).removesuffix(",\n") + "]"
    )
    trace = open_trace(path)

    assert len(trace.steps) == 5
    assert set(trace.sums["process_ran_ns"]) == {-1}
    assert not read_cpu_time(trace, find_steps(trace, warm_up=0)).is_known


NUMBERS = st.integers(0, 50) | st.sampled_from([-1, 2**46, 2**70, 1.5, "7", "x", None, True])
ROWS = st.lists(
    st.lists(st.integers(0, 50), min_size=4, max_size=4).map(lambda row: [row[0], sum(row), *row[2:]]),
    min_size=1,
    max_size=4,
)
METERED = ["data", "forward", "backward", "optimizer", "other"]


@st.composite
def told_steps(draw: st.DrawFn) -> dict[str, Any]:
    """The args of an event: as they should be, or with something that is not."""
    rows: Any = draw(ROWS)
    args: dict[str, Any] = {"first": draw(st.integers(0, 9)), "parts": ["forward", "optimizer"], "us": rows}
    if draw(st.booleans()):
        width = draw(st.sampled_from([6, 6, 11]))
        load = [[draw(st.integers(0, 9))] * width for _ in range(draw(st.sampled_from([len(rows)] * 4 + [1])))]
        args["load"] = {"unit_us": draw(st.sampled_from([4, 4, 4, 0, 8])), "parts": METERED, "rows": load}
    damage = draw(st.sampled_from(["", "", "", "", "number", "row", "parts", "us", "first", "load"]))
    if damage == "number":
        rows[draw(st.integers(0, len(rows) - 1))][draw(st.integers(0, 3))] = draw(NUMBERS)
    elif damage == "row":
        rows.append(draw(st.lists(NUMBERS, max_size=5) | NUMBERS))
    elif damage:
        args[damage] = draw(st.sampled_from([[], {}, None, "x", 3, ["forward"], ["x", "forward"]]))
    return args


@given(st.lists(st.tuples(st.integers(0, 10**9), told_steps()), max_size=4))
def test_events_are_read_together_as_they_are_alone(told: list[tuple[int, dict[str, Any]]]) -> None:
    """Whatever is damaged in them, and whichever tell what the threads got of their processors."""
    *alone, bad = tlkit_sums._read_each(told)
    sums, bad_together = tlkit_sums.read_sums(told)
    numbers, table, load = alone

    assert bad_together == bad
    assert sums["step"].tolist() == numbers.tolist()
    together = [sums[name].tolist() for name in ("start_ns", "end_ns", *(f"{part}_ns" for part in PARTS), *LOADS)]
    assert together == [column.tolist() for column in (*table.T, *load.T)]


@given(st.lists(st.tuples(st.integers(0, 10**9), ROWS), min_size=1, max_size=4))
def test_a_sound_shard_is_read_at_once(told: list[tuple[int, list[list[int]]]]) -> None:
    """Not event by event: of a thousand ranks that would take most of the time."""
    parts = ["forward", "optimizer"]
    assert (
        tlkit_sums._read_alike([(at_ns, {"first": 0, "parts": parts, "us": rows}) for at_ns, rows in told]) is not None
    )
