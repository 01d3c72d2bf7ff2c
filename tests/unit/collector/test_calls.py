"""Collectives that user code calls in every step: what they are called, where they are, what they cost."""

from dataclasses import replace

import numpy as np
import pytest

from tests.traces import MS, Parts, make_trace
from tlkit.collector import analyze
from tlkit.collector.analysis import measure
from tlkit.collector.facts import Facts
from tlkit.collector.findings import calls
from tlkit.collector.findings.calls import BlockingCalls, _between
from tlkit.collector.model.steps import find_steps
from tlkit.timeline.model.trace import COLLECTIVE_COLUMNS, SPAN_COLUMNS, Trace, make_table
from tlkit.timeline.vocabulary import OBJECT_CALL, SYNCHRONIZE

#: Three calls of 5 ms each after the optimizer; the first collective of a step is the gradients'.
STEP: Parts = [
    ("data", 0.5),
    ("forward", 30),
    ("backward", 60),
    ("wait:collective", 2),
    ("optimizer", 3),
    ("wait:collective", 5),
    ("forward", 0.001),
    ("wait:collective", 5),
    ("forward", 0.001),
    ("wait:collective", 5),
    ("host", 2),
]
CALLS = 3


def with_calls(caller: str, where: str, *, blocking: int = 1, count: int = 30, ranks: int = 2) -> Trace:
    """A trace in which `caller` calls all collectives but the gradients'."""
    trace = make_trace([[STEP] * count for _ in range(ranks)], nbytes=1000, tensors_per_collective=1)
    table = trace.collectives
    called = table["seq"].to_numpy() % (CALLS + 1) > 0
    columns = {name: table[name].to_numpy() for name in COLLECTIVE_COLUMNS} | {
        "caller": np.where(called, caller, "gradient"),
        "where": np.where(called, where, ""),
        "blocking": np.where(called, blocking, 0),
    }
    return replace(trace, collectives=make_table(COLLECTIVE_COLUMNS, columns))


def with_object_spans(trace: Trace, before: int, after: int) -> Trace:
    """Around the calls of each step a span of the helper, which pickles for so long before them and reads for so long after (ns)."""
    spans = trace.spans
    waits = spans[(spans["name"] == SYNCHRONIZE)]
    rows = []
    for rank in trace.meta.ranks:
        mine = waits[waits["rank"] == rank]
        starts, ends = mine["start_ns"].to_numpy(), (mine["start_ns"] + mine["dur_ns"]).to_numpy()
        first, last = starts[1 :: CALLS + 1], ends[CALLS :: CALLS + 1]
        rows += [
            (rank, "compute", "compute", "other", OBJECT_CALL, start - before, end + after - start + before, -1)
            for start, end in zip(first, last, strict=True)
        ]
    made = {name: np.array(values) for name, values in zip(SPAN_COLUMNS, zip(*rows, strict=True), strict=True)}
    columns = {name: np.concatenate((spans[name].to_numpy(), made[name])) for name in SPAN_COLUMNS}
    return replace(trace, spans=make_table(SPAN_COLUMNS, columns))


def facts_of(trace: Trace) -> Facts:
    return measure(trace, find_steps(trace))


@pytest.mark.parametrize(
    ("caller", "cause", "words"),
    [
        ("user", "blocking-calls", "calls 3 blocking collectives of its own"),
        (
            "object",
            "object-collectives",
            "calls 3 collectives of Python objects (a pickle and at least two collectives each)",
        ),
        ("barrier", "barriers", "calls 3 barriers"),
        ("group", "process-groups-made", "makes 3 process groups"),
    ],
)
def test_calls_are_named_with_their_line_and_cost(caller: str, cause: str, words: str) -> None:
    """15 of 112.5 ms, in every step."""
    facts = facts_of(with_calls(caller, "train.py:12"))
    (finding,) = BlockingCalls().find(facts)

    assert (finding.class_, finding.cause, finding.ranks) == ("communication", cause, (0, 1))
    assert finding.predicted_gain == pytest.approx(15 / 112.502, abs=0.002)
    assert finding.gain_interval[0] <= finding.predicted_gain <= finding.gain_interval[1]
    assert finding.sentence.startswith(f"The training {words} in every step (train.py:12) and waits for each")
    assert "15.0 ms of each 113 ms step" in finding.sentence


def test_one_call_is_no_plural() -> None:
    """One in each step, which it waits for."""
    trace = with_calls("user", "train.py:12")
    columns = {name: trace.collectives[name].to_numpy() for name in COLLECTIVE_COLUMNS}
    first = columns["seq"] % (CALLS + 1) == 1
    columns |= {"caller": np.where(first, "user", "gradient"), "blocking": np.where(first, 1, 0)}
    (finding,) = BlockingCalls().find(facts_of(replace(trace, collectives=make_table(COLLECTIVE_COLUMNS, columns))))

    words = "The training calls 1 blocking collective of its own in every step (train.py:12) and waits for it: "
    assert finding.sentence.startswith(words)


def test_the_verdict_names_them_too() -> None:
    verdict = analyze(with_calls("user", "metrics.py:7")).verdict

    assert (verdict.class_, verdict.cause) == ("communication", "blocking-calls")
    assert "metrics.py:7" in verdict.sentence


@pytest.mark.parametrize(("caller", "blocking"), [("user", 0), ("user", -1), ("gradient", 1), ("norm", 1), ("", 1)])
def test_only_blocking_calls_of_user_code_count(caller: str, blocking: int) -> None:
    assert not BlockingCalls().find(facts_of(with_calls(caller, "train.py:12", blocking=blocking)))


def test_in_a_long_run_every_fiftieth_step_keeps_them() -> None:
    """In 119 analysed steps the calls of three stay."""
    facts = facts_of(with_calls("user", "train.py:12", count=120))
    (finding,) = BlockingCalls().find(facts)

    assert finding.outcome is not None
    assert np.flatnonzero(finding.outcome.saved_ns < 10 * MS).tolist() == [0, 50, 100]
    assert finding.predicted_gain == pytest.approx(15 / 112.502 * 116 / 119, abs=0.002)


def test_several_callers_have_a_finding_each() -> None:
    trace = with_calls("user", "train.py:12")
    table = trace.collectives
    columns = {name: table[name].to_numpy() for name in COLLECTIVE_COLUMNS}
    last = table["seq"].to_numpy() % (CALLS + 1) == CALLS
    columns["caller"] = np.where(last, "barrier", columns["caller"])
    columns["where"] = np.where(last, "train.py:20", columns["where"])
    found = BlockingCalls().find(facts_of(replace(trace, collectives=make_table(COLLECTIVE_COLUMNS, columns))))

    assert {finding.cause: finding.evidence["where"] for finding in found} == {
        "blocking-calls": ["train.py:12"],
        "barriers": ["train.py:20"],
    }
    gains = {finding.cause: finding.predicted_gain for finding in found}
    assert gains["blocking-calls"] == pytest.approx(10 / 112.502, abs=0.002)
    assert gains["barriers"] == pytest.approx(5 / 112.502, abs=0.002)


def test_broadcasts_of_buffers_that_cost_little_are_not_named() -> None:
    """Broadcasts of 15 of 112.5 ms belong to a healthy run of DDP; elsewhere the script asks for them."""
    trace = with_calls("parameters", "train.py:12")
    (found,) = BlockingCalls().find(facts_of(trace))

    assert found.cause == "repeated-broadcasts"
    assert not BlockingCalls().find(facts_of(replace(trace, meta=replace(trace.meta, runtime="torch"))))


def test_large_buffers_are_named_for_less() -> None:
    """What moves megabytes in each step is no usual buffer of a normalisation: the same 15 of 112.5 ms."""
    trace = with_calls("parameters", "train.py:12")
    table = trace.collectives
    columns = {name: table[name].to_numpy() for name in COLLECTIVE_COLUMNS} | {"nbytes": np.full(len(table), 8_000_000)}
    trace = replace(trace, collectives=make_table(COLLECTIVE_COLUMNS, columns))
    (found,) = BlockingCalls().find(facts_of(replace(trace, meta=replace(trace.meta, runtime="torch"))))

    assert found.cause == "repeated-broadcasts"
    assert found.predicted_gain == pytest.approx(15 / 112.502, abs=0.002)


@pytest.mark.parametrize(("nbytes", "is_told"), [(1000, False), (20_000_000, True)])
def test_large_buffers_are_named_on_a_loaded_machine_too(
    monkeypatch: pytest.MonkeyPatch, *, nbytes: int, is_told: bool
) -> None:
    """Where cores lack, ranks wait for each other in any collective; to move 20 MB takes its time."""
    monkeypatch.setattr(calls, "lacks_cores", lambda _: True)
    monkeypatch.setattr(calls, "MIN_OF_BUFFERS", 0.05)
    trace = with_calls("parameters", "")
    trace = replace(
        trace,
        meta=replace(trace.meta, runtime="torch"),
        collectives=trace.collectives.assign(nbytes=np.int64(nbytes)),
    )

    assert bool(BlockingCalls().find(facts_of(trace))) == is_told


def test_calls_that_are_waited_for_together_cost_the_code_between_them() -> None:
    """Three that are submitted 1 ms apart while the first is under way: what the thread does in between goes with them."""
    trace = with_calls("parameters", "train.py:12")
    facts = facts_of(trace)
    assert facts.graph is not None
    operations = facts.graph.operations
    mine = np.array(operations.caller, dtype=object) == "parameters"
    number = np.cumsum(mine) - 1
    first = operations.arrival_ns[mine].reshape(-1, CALLS, 2)[:, :1, :] + np.arange(CALLS)[None, :, None] * MS
    arrival, end = operations.arrival_ns.copy(), operations.own_end_ns.copy()
    arrival[mine] = first.reshape(-1, 2)
    end[mine] = (first.max(axis=1, keepdims=True) + MS + np.zeros_like(first)).reshape(-1, 2)
    together = replace(facts.graph, operations=replace(operations, arrival_ns=arrival, own_end_ns=end))
    between = _between(replace(facts, graph=together), mine)

    assert number.max() + 1 == CALLS * facts.steps.count
    assert np.median(between) == (CALLS - 1) * MS


def test_pickling_before_and_after_the_collectives_goes_with_them() -> None:
    """40 ms of the loop's own code before and 20 after: they are the helper's, which its span tells."""
    trace = with_calls("object", "train.py:7")
    slow: list[Parts] = [[*STEP[:5], ("host", 40), *STEP[5:-1], ("host", 22)] for _ in range(30)]
    made = make_trace([slow, slow], nbytes=1000, tensors_per_collective=1)
    bare = replace(
        made,
        collectives=made.collectives.assign(
            **{name: trace.collectives[name] for name in ("caller", "where", "blocking")}
        ),
    )
    (without,), (found,) = (
        BlockingCalls().find(facts_of(one)) for one in (bare, with_object_spans(bare, before=40 * MS, after=20 * MS))
    )

    step_ms = sum(ms for _, ms in slow[0])
    assert without.predicted_gain == pytest.approx(15 / step_ms, abs=0.02)
    assert found.predicted_gain == pytest.approx(75 / step_ms, abs=0.02)


@pytest.mark.parametrize(("layers", "nbytes", "is_told"), [(3, 33_000, False), (20, 33_000, True), (20, 66_048, True)])
def test_parameters_gathered_for_each_layer_are_no_calls_of_the_script(
    *, layers: int, nbytes: int, is_told: bool
) -> None:
    """A sharded model waits for them: those of many layers had better travel together, small or not much larger."""
    each: list[tuple[str, float]] = [("forward", 1.0), ("wait:collective", 3.0)]
    step: Parts = [("data", 0.5), ("forward", 30), *(each * layers), ("backward", 60), ("optimizer", 3), ("host", 2)]
    trace = make_trace([[step] * 30 for _ in range(2)], nbytes=nbytes, tensors_per_collective=1)
    table = trace.collectives
    columns = {name: table[name].to_numpy() for name in COLLECTIVE_COLUMNS} | {
        "kind": np.full(len(table), "allgather", dtype=object),
        "caller": np.full(len(table), "parameters", dtype=object),
        "blocking": np.ones(len(table), dtype=np.int64),
    }
    found = analyze(replace(trace, collectives=make_table(COLLECTIVE_COLUMNS, columns))).findings
    causes = {finding.cause for finding in found}

    assert "repeated-broadcasts" not in causes
    assert ("many-small-collectives" in causes) == is_told
