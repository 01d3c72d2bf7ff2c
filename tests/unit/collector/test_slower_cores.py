"""What neighbours on a host, or more of the same work, make of a run: all that is computed longer by the same share, and no fault."""

from dataclasses import replace

import numpy as np
import pytest

from tests.traces import MS, make_trace
from tlkit.collector import analyze
from tlkit.collector.analysis import Analysis
from tlkit.timeline.model.columns import TableBuilder
from tlkit.timeline.model.trace import COUNTER_COLUMNS, Trace
from tlkit.timeline.vocabulary import OPERATOR_THREADS

from .runs import Plan, even, record
from .test_diagnosis import jittered

STEPS = 60


def on_hosts(trace: Trace, *names: str) -> Trace:
    return replace(trace, meta=replace(trace.meta, hosts=dict(enumerate(names))))


def longer(plan: Plan, slow: np.ndarray, **times: float) -> Plan:
    """The same run in which parts take so many times as long where `slow`, bool[R, S], is set."""
    changed = {}
    for part in ("forward", "backward", "optimizer"):
        values = getattr(plan, part)
        where = slow[..., None] if values.ndim > slow.ndim else slow
        changed[part] = np.where(where, values * times.get(part, 1.0), values).astype(np.int64)
    return replace(plan, **changed)


def shaken(ranks: int) -> Plan:
    """A run whose parts vary by one in a hundred."""
    plan = even(ranks, STEPS)
    random = np.random.default_rng(1)
    return replace(
        plan,
        forward=plan.forward + random.integers(-MS // 3, MS // 3, plan.forward.shape),
        backward=plan.backward + random.integers(-MS // 2, MS // 2, plan.backward.shape),
    )


def in_turn(ranks: int, share: float) -> np.ndarray:
    """Each rank in steps of its own: bool[R, S]."""
    random = np.random.default_rng(2)
    who = random.integers(0, ranks, STEPS)
    slow: np.ndarray = (np.arange(ranks)[:, None] == who) & (random.random(STEPS) < share)
    return slow


ALL = {"forward": 1.25, "backward": 1.3, "optimizer": 1.2}


def analysed(plan: Plan, *hosts: str) -> Analysis:
    return analyze(on_hosts(record(plan), *hosts))


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_ranks_of_one_host_on_slower_cores_now_and_then(share: float) -> None:
    """In turn: nothing that anybody could change in the training."""
    assert analysed(longer(shaken(2), in_turn(2, share), **ALL), "a", "a").verdict.class_ == "healthy"


def test_one_part_alone_is_the_rank_s_own() -> None:
    """The same in forward only."""
    verdict = analysed(longer(shaken(2), in_turn(2, 0.6), forward=1.9), "a", "a").verdict

    assert verdict.class_ == "straggler"
    assert "in forward" in verdict.sentence


@pytest.mark.parametrize("in_common", [True, False])
def test_code_of_the_loop_beside_parts_as_long_as_ever_is_told(*, in_common: bool) -> None:
    """Here and there 50 ms of it, on all ranks or on one: by chance the other parts are a little longer, too."""
    slow = np.random.default_rng(3).permutation(STEPS)[:14]
    usual = list({"data": 0.5, "forward": 30, "backward": 60, "wait:collective": 2, "optimizer": 3, "host": 2}.items())
    longer_step = [(part, ms * 1.001) for part, ms in usual[:-1]] + [("host", 52.0)]
    steps = [
        [longer_step if number in slow and (in_common or not rank) else usual for number in range(STEPS)]
        for rank in range(2)
    ]
    verdict = analyze(on_hosts(make_trace(jittered(steps)), "a", "a")).verdict

    assert verdict.class_ == ("compute" if in_common else "straggler")


def test_a_rank_with_fewer_threads_is_told() -> None:
    """What it computes takes longer in all parts, too, and somebody can change that."""
    slow = np.zeros((2, STEPS), dtype=bool)
    slow[1] = True
    trace = on_hosts(record(longer(shaken(2), slow, forward=1.15, backward=1.15, optimizer=1.15)), "a", "a")
    counters = TableBuilder(COUNTER_COLUMNS)
    for rank, threads in enumerate((2.0, 1.0)):
        counters.add(rank, OPERATOR_THREADS, 0, threads)

    assert analyze(trace).verdict.class_ == "healthy"
    assert analyze(replace(trace, counters=counters.finish())).verdict.ranks == (1,)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_short_part_that_takes_several_times_as_long_is_told(ranks: int) -> None:
    """The optimizer's 3 ms become 13, while forward and backward are a thousandth longer by chance: of rank 0, or of all here and there."""
    slow = np.zeros((2, STEPS), dtype=bool)
    slow[:ranks] = np.random.default_rng(4).random(STEPS) < (1.0 if ranks == 1 else 0.5)
    plan = longer(shaken(2), slow, forward=1.001, backward=1.001, optimizer=5.0)
    verdict = analysed(plan, "a", "a").verdict

    assert verdict.class_ == ("straggler" if ranks == 1 else "compute")
    assert "optimizer" in verdict.sentence.lower()


def test_a_host_that_is_slower_than_the_other() -> None:
    """A machine may be replaced."""
    slow = np.zeros((2, STEPS), dtype=bool)
    slow[1] = True
    verdict = analysed(longer(shaken(2), slow, forward=1.15, backward=1.15, optimizer=1.15), "a", "b").verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))


def test_a_rank_that_takes_far_longer_is_told_on_one_host_too() -> None:
    """Its share of the step is more than neighbours take."""
    slow = np.zeros((2, STEPS), dtype=bool)
    slow[1] = True
    verdict = analysed(longer(shaken(2), slow, forward=1.5, backward=1.5, optimizer=1.5), "a", "a").verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))


@pytest.mark.parametrize(("parts", "class_"), [(("forward", "backward"), "healthy"), (("forward",), "compute")])
def test_steps_with_more_to_compute(parts: tuple[str, ...], class_: str) -> None:
    """Here and there, on all ranks: forward and backward alike is more of the same, one part alone is something besides."""
    slow = np.zeros((2, STEPS), dtype=bool)
    slow[:, np.random.default_rng(3).permutation(STEPS)[:14]] = True
    times = dict.fromkeys(parts, 2.2 if len(parts) > 1 else 4.0)
    verdict = analysed(longer(shaken(2), slow, **times), "a", "a").verdict

    assert verdict.class_ == class_
