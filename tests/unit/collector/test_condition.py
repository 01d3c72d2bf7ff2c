"""What a trace is said to be before anything is found in it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.traces import MS, make_trace, uniform
from tlkit.collector import analyze, make_report
from tlkit.collector.model.condition import Condition, find_condition
from tlkit.collector.model.host_load import find_host_load
from tlkit.collector.model.steps import find_steps
from tlkit.timeline import open_trace
from tlkit.timeline.model.ending import OpenSpan, OpenTensor, RankEnd, make_end
from tlkit.timeline.model.trace import COUNTER_COLUMNS, Clock, Trace, make_table
from tlkit.timeline.vocabulary import STARVED_COUNTERS, Category

STEP = {"data": 1, "forward": 30, "backward": 60, "wait:negotiate": 1, "wait:collective": 4, "optimizer": 4}
STEP_NS = 100 * MS
SECOND = 1000 * MS

CLOSED = make_end(is_closed=True)
CUT = make_end(is_closed=False)


def waiting(at_ns: int, *names: str, asked_by: tuple[int, ...] = (), is_closed: bool | None = False) -> RankEnd:
    """The end of a rank that waits for tensors."""
    blocked = OpenSpan(lane="compute", category="other", name="SYNCHRONIZE", start_ns=at_ns)
    tensors = [
        OpenTensor(name=name, kind="allreduce", submitted_ns=at_ns, is_negotiated=False, asked_by=asked_by)
        for name in names
    ]
    return make_end(is_closed=is_closed, open_spans=[blocked], open_tensors=tensors)


def trace_of(ends: Mapping[int, RankEnd], *, ranks: int = 2, steps: int = 20, size: int = 0, **meta: object) -> Trace:
    """Healthy steps of 100 ms, and these ends."""
    trace = make_trace(uniform(ranks, steps, STEP))
    changes = {"ends": ends, "size": size or ranks, "epoch_unix_ns": SECOND, **meta}
    return replace(trace, meta=replace(trace.meta, **changes))  # type: ignore[arg-type]


def counted(trace: Trace, name: str, values: Mapping[tuple[int, int], float]) -> Trace:
    """With a counter: by rank and time (ns)."""
    data = {
        "rank": np.array([rank for rank, _ in values], np.int32),
        "name": np.array([name] * len(values)),
        "ts_ns": np.array([at for _, at in values], np.int64),
        "value": np.array(list(values.values()), np.float64),
    }
    return replace(trace, counters=make_table(COUNTER_COLUMNS, data))


def condition_of(trace: Trace, now_unix_ns: int = 0) -> Condition:
    steps = find_steps(trace)
    return find_condition(trace, steps, find_host_load(trace, steps), now_unix_ns=now_unix_ns)


def test_a_run_that_was_closed_needs_no_word() -> None:
    """Nothing stands before the verdict."""
    condition = condition_of(trace_of({0: CLOSED, 1: CLOSED}))

    assert condition.ending == "complete"
    assert condition.sentences() == ()
    assert condition.can_compare_ranks
    assert condition.can_compare_times


def test_an_exception_is_named_with_its_rank_and_step() -> None:
    """The rank that failed because another one had is not the one."""
    second = make_end(is_closed=True, error="HorovodInternalError: rank 1 died")
    trace = trace_of({0: second, 1: make_end(is_closed=True, error="ValueError: bad batch")})
    condition = condition_of(trace)
    verdict = analyze(trace).verdict

    assert (condition.ending, condition.blamed_ranks) == ("ended-early", (1,))
    assert "rank 1 failed at 2.0 s in step 20, after the optimizer: ValueError: bad batch." in condition.sentences()[0]
    assert (verdict.class_, verdict.cause, verdict.ranks) == ("unknown", "ended-early", (1,))
    assert verdict.sentence.startswith(condition.sentences()[0])


def test_silence_before_the_end_is_a_hang_of_the_rank_that_asked_for_nothing() -> None:
    """Counters show that the processes lived; the tensors say who waited for whom."""
    trace = trace_of({0: waiting(20 * STEP_NS, "allreduce.a", "allreduce.b"), 1: CUT})
    trace = counted(trace, "process cpu %", {(0, 12 * SECOND): 1.0, (1, 12 * SECOND): 1.0})
    condition = condition_of(trace)
    (sentence,) = condition.sentences()

    assert (condition.ending, condition.blamed_ranks) == ("hung", (1,))
    assert condition.waiting[0].count == 2
    assert "The run hung in step 20: nothing happens after 2.0 s, for 10.0 s until the files end" in sentence
    assert "rank 0 waits from 2.0 s on for allreduce.a and 1 more, which rank 1 never asked for" in sentence
    assert analyze(trace).verdict.cause == "hung"


def test_a_rank_whose_file_stops_before_the_others_is_named() -> None:
    """The others went on for seconds, waiting."""
    trace = trace_of({0: waiting(20 * STEP_NS, "allreduce.a"), 1: CUT})
    trace = counted(trace, "process cpu %", {(0, 3900 * MS): 1.0})
    condition = condition_of(trace)

    assert (condition.ending, condition.blamed_ranks) == ("ended-early", (1,))
    assert (
        "rank 1's file stops at 2.0 s in step 20, after the optimizer, without an end; rank 0 waits"
        in (condition.sentences()[0])
    )


def test_a_file_without_an_end_beside_closed_ones_is_the_one_to_look_at() -> None:
    """Rank 0 closed its file."""
    condition = condition_of(trace_of({0: CLOSED, 1: CUT}))

    assert (condition.ending, condition.blamed_ranks) == ("ended-early", (1,))


def test_all_files_cut_off_are_a_killed_job_unless_the_last_event_is_new() -> None:
    """The wall clock decides whether the run may be going on."""
    trace = trace_of({0: CUT, 1: CUT})
    end_unix_ns = trace.meta.epoch_unix_ns + 20 * STEP_NS

    assert condition_of(trace, end_unix_ns + 60 * SECOND).ending == "ended-early"
    assert condition_of(trace, end_unix_ns + SECOND).ending == "running"
    assert "had not ended" in condition_of(trace, end_unix_ns + SECOND).sentences()[0]


def test_ranks_that_wait_for_different_tensors_are_both_told() -> None:
    """A mismatch: each asks for what the other does not."""
    condition = condition_of(trace_of({0: waiting(20 * STEP_NS, "a"), 1: waiting(20 * STEP_NS, "b")}))

    assert {(item.tensor, item.by, item.missing) for item in condition.waiting} == {
        ("a", (0,), (1,)),
        ("b", (1,), (0,)),
    }


@pytest.mark.parametrize(("asked_by", "missing"), [((0, 2), (1,)), ((), ())])
def test_a_horovod_file_that_ends_in_a_negotiation(asked_by: tuple[int, ...], missing: tuple[int, ...]) -> None:
    """Ticks tell who had asked; without ticks nobody is accused."""
    end = waiting(18 * STEP_NS, "allreduce.a", asked_by=asked_by, is_closed=None)
    trace = trace_of({0: end}, ranks=1, size=3, format="horovod")
    condition = condition_of(trace)

    assert (condition.ending, condition.blamed_ranks) == ("ended-early", missing)
    assert not condition.is_incomplete
    assert ("which rank 1 never asked for" in condition.sentences()[0]) is bool(missing)


def test_a_format_without_ends_accuses_nobody() -> None:
    """The PyTorch profiler says nothing about how a run ended."""
    condition = condition_of(trace_of({}))

    assert condition.ending == "unknown"
    assert condition.sentences() == ()


def test_missing_files_forbid_healthy_and_stragglers() -> None:
    """With one of two files there is no word about the other rank."""
    trace = trace_of({0: CLOSED}, ranks=1, size=2)
    analysis = analyze(trace)

    assert not analysis.condition.can_compare_ranks
    assert (analysis.verdict.class_, analysis.verdict.cause) == ("unknown", "incomplete")
    assert "hardly waits" in analysis.verdict.sentence
    assert "1 of 2 ranks have no file here (only rank 0 is)" in analysis.condition.sentences()[0]


def test_a_recorded_rank_that_waits_says_that_a_missing_one_is_late() -> None:
    """It is no slow negotiation."""
    trace = make_trace(uniform(1, 20, STEP | {"wait:negotiate": 60}))
    trace = replace(trace, meta=replace(trace.meta, size=2, files=("t.json",), ends={0: CLOSED}))
    analysis = analyze(trace)

    assert (analysis.verdict.cause, analysis.verdict.ranks) == ("incomplete", ())
    assert "waits for other ranks during 38%" in analysis.verdict.sentence
    assert "t.rank1.json" in analysis.verdict.remedy
    assert all(finding.cause != "slow-negotiation" for finding in analysis.findings)


def test_arrivals_in_rank_0s_file_name_the_late_rank_whose_file_is_missing() -> None:
    """The coordinator notes when each rank asked."""
    both = make_trace([*uniform(1, 20, STEP | {"wait:negotiate": 60}), *uniform(1, 20, STEP)])
    alone = make_trace(uniform(1, 20, STEP | {"wait:negotiate": 60}))
    late = both.arrivals.copy()
    late.loc[late["rank"] == 1, "arrival_ns"] = late.loc[late["rank"] == 0, "arrival_ns"].to_numpy()
    late.loc[late["rank"] == 0, "arrival_ns"] -= 60 * MS
    trace = replace(alone, arrivals=late, meta=replace(alone.meta, size=2, files=("t.json",), ends={0: CLOSED}))
    verdict = analyze(trace).verdict

    assert (verdict.class_, verdict.cause, verdict.ranks) == ("unknown", "incomplete", (1,))
    assert (
        "Rank 1, whose file is missing, is the last to ask in 100% of the collectives, by 60.0 ms" in verdict.sentence
    )
    assert "Fetch t.rank1.json" in verdict.remedy


def test_a_slow_loader_of_a_recorded_rank_may_be_said() -> None:
    """It does not depend on the others, and says of whom it holds."""
    trace = trace_of({0: CLOSED}, ranks=1, size=2)
    slow = make_trace(uniform(1, 20, STEP | {"data": 80}))
    verdict = analyze(replace(slow, meta=trace.meta)).verdict

    assert (verdict.class_, verdict.cause) == ("data", "slow-loader")
    assert verdict.sentence.startswith("On the recorded ranks (1 of 2): ")
    assert verdict.confidence <= 0.5


@pytest.mark.parametrize(
    ("clock", "can", "words"),
    [
        (Clock(method="none", uncertainty_ns=0), False, "not aligned"),
        (Clock(method="collectives", uncertainty_ns=50 * MS), False, "known to 50.0 ms only"),
        (Clock(method="runtime", uncertainty_ns=8_000), True, ""),
    ],
)
def test_clocks_that_do_not_agree_order_nothing(clock: Clock, can: bool, words: str) -> None:
    """Durations can be compared all the same."""
    condition = condition_of(trace_of({0: CLOSED, 1: CLOSED}, clock=clock))

    assert condition.can_compare_times is can
    assert condition.can_compare_ranks
    assert words in " ".join(condition.sentences())


def test_few_and_sampled_steps_are_said() -> None:
    """Nine steps are few, and every fifth is a sample."""
    trace = trace_of({0: CLOSED, 1: CLOSED}, steps=6)
    trace = replace(trace, steps=trace.steps.assign(step=trace.steps["step"] * 5))
    said = " ".join(condition_of(trace).sentences())

    assert "Only 5 steps could be analysed" in said
    assert "Only 23% of the steps were recorded" in said


def test_other_processes_on_the_host_are_said() -> None:
    """Two ranks of 60 % of a core each on four cores that are all busy."""
    trace = trace_of({0: CLOSED, 1: CLOSED}, hosts={0: "a", 1: "a"})
    tables = [
        counted(trace, name, {(rank, at * STEP_NS): value for at in range(2, 19) for rank in ranks}).counters
        for name, value, ranks in (
            ("host cpu %", 100.0, (0,)),
            ("host cores", 4.0, (0,)),
            ("process cpu %", 60.0, (0, 1)),
        )
    ]
    data = {column: np.concatenate([table[column].to_numpy() for table in tables]) for column in COUNTER_COLUMNS}
    condition = condition_of(replace(trace, counters=make_table(COUNTER_COLUMNS, data)))

    assert condition.load is not None
    assert condition.load.others_ratio == pytest.approx(0.7)
    assert "processes other than the ranks had 70% of its cores" in condition.sentences()[-1]


def test_of_several_hosts_the_busiest_is_told() -> None:
    """Each by its own ranks, whichever comes first; the ranks of one that is not metered say nothing."""
    trace = trace_of(dict.fromkeys(range(6), CLOSED), ranks=6, hosts={rank: "abc"[rank // 2] for rank in range(6)})
    told = {
        "host cpu %": {0: 50.0, 2: 90.0},
        "host cores": {0: 4.0, 2: 8.0},
        "process cpu %": dict.fromkeys(range(6), 100.0),
    }
    tables = [
        counted(trace, name, {(rank, 5 * STEP_NS): value for rank, value in values.items()}).counters
        for name, values in told.items()
    ]
    data = {column: np.concatenate([table[column].to_numpy() for table in tables]) for column in COUNTER_COLUMNS}
    load = condition_of(replace(trace, counters=make_table(COUNTER_COLUMNS, data))).load

    assert load is not None
    assert (load.busy_ratio, load.others_ratio, load.cores_per_rank) == pytest.approx((0.9, 0.65, 4.0))


def test_counters_outside_of_the_steps_say_nothing() -> None:
    """As readers make them: the texts of a column are all names of the trace, thousands perhaps."""
    trace = counted(trace_of({0: CLOSED}, ranks=1), "host cpu %", {(0, 1000 * STEP_NS): 100.0})
    names = [*(f"tensor {number}" for number in range(10_000)), "host cpu %", "host cores", "process cpu %"]
    trace.counters["name"] = trace.counters["name"].cat.set_categories(names)

    assert condition_of(trace).load is None


def test_the_report_has_the_condition() -> None:
    """For programs."""
    report = make_report(analyze(trace_of({0: CLOSED, 1: CUT})))

    assert report["condition"]["ending"] == "ended-early"
    assert list(report["condition"]["blamed_ranks"]) == [1]
    assert report["condition"]["sentences"][0].startswith("The run ended early")


def test_a_shard_tells_how_it_ends(tmp_path: Path) -> None:
    """An open span, a tensor that waits, and no closing event."""
    rows = [
        '{"name":"tlkit_shard","ph":"M","pid":0,"tid":0,"ts":0,"args":{"rank":0,"size":1,"run_id":"x"}}',
        '{"name":"FORWARD","cat":"forward","ph":"X","pid":0,"tid":1,"ts":0,"dur":900}',
        '{"name":"SYNCHRONIZE","cat":"other","ph":"B","pid":0,"tid":1,"ts":1000}',
        '{"name":"allreduce.a","cat":"tensor","ph":"b","pid":0,"tid":3,"id":"0.1","ts":950,"args":{"bytes":4}}',
        '{"name":"NEGOTIATE_ALLREDUCE","cat":"tensor","ph":"b","pid":0,"tid":3,"id":"0.1","ts":950}',
    ]
    (tmp_path / "t.json").write_text("[\n" + ",\n".join(rows) + ",\n")
    end = open_trace(tmp_path / "t.json").meta.ends[0]
    (tensor,) = end.open_tensors

    assert end.is_closed is False
    assert [(span.name, span.start_ns) for span in end.open_spans] == [("SYNCHRONIZE", 1_000_000)]
    assert (tensor.name, tensor.kind, tensor.submitted_ns, tensor.is_negotiated) == (
        "allreduce.a",
        "allreduce",
        950_000,
        False,
    )

    closing = (
        '{"name":"tlkit_end","ph":"M","pid":0,"tid":0,"ts":0,"args":{"events":3,"lost":0,"error":"ValueError: x"}}'
    )
    (tmp_path / "t.json").write_text("[\n" + ",\n".join([*rows[:2], closing]) + "\n]\n")
    end = open_trace(tmp_path / "t.json").meta.ends[0]

    assert (end.is_closed, end.error, end.open_spans) == (True, "ValueError: x", ())


def test_cores_that_the_start_lacked_say_nothing_of_the_steps() -> None:
    """What is counted at the end of a step that is left out lies where the first of the others begins, on each rank's own clock."""
    trace = make_trace(uniform(2, 20, STEP))
    steps = find_steps(trace)
    at = {(rank, int(steps.start_ns[rank, 0])): 5.0 * SECOND for rank in range(2)}
    inside = {(rank, int(steps.end_ns[rank, -1])): 0.01 * steps.count * STEP_NS for rank in range(2)}
    load = find_host_load(counted(trace, STARVED_COUNTERS[Category.OTHER], {**at, **inside}), steps)

    assert load is not None
    assert load.starved_ratio == pytest.approx(0.01)
    assert not load.lacks_cores
