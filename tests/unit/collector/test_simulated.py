"""The diagnosis on simulated jobs whose truth is known; benchmarks/diagnosis/simulated.py tries thousands."""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "diagnosis"))

from simulate import write_case
from simulated import diagnose, summarise, try_case
from simulator.cases import MIXTURE, TWO, make_case

from tlkit.collector import analyze

CASES: Final = 100
SEED: Final = 7_000_000

#: The goals are 0.98, 0.99, 5 and 15.
MIN_TOP_RIGHT: Final = 0.92
MIN_HEALTHY_CLEAN: Final = 0.97
MAX_GAIN_ERROR_MEDIAN: Final = 3.0
MAX_GAIN_ERROR_P95: Final = 28.0


@pytest.mark.timeout(900)  # half a minute on two idle cores
def test_the_diagnosis_of_simulated_jobs_is_right() -> None:
    one = partial(try_case, only="", file_format="mixed", keep=None)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        verdicts = list(pool.map(one, range(SEED, SEED + CASES), chunksize=5))
    figures = summarise(verdicts)
    wrong = "\n".join(
        f"{verdict.format} seed {verdict.seed}: {verdict.expected}\n    found {verdict.found}"
        for verdict in verdicts
        if not verdict.is_right
    )
    assert {verdict.format for verdict in verdicts} == set(MIXTURE)
    assert not any("error" in verdict.found.split(":")[0] for verdict in verdicts), wrong
    assert figures["top_right"] >= MIN_TOP_RIGHT, f"{figures}\n{wrong}"
    assert figures["healthy_clean"] >= MIN_HEALTHY_CLEAN, f"{figures}\n{wrong}"
    assert figures["gain_error_median"] <= MAX_GAIN_ERROR_MEDIAN, figures
    assert figures["gain_error_p95"] <= MAX_GAIN_ERROR_P95, figures


def test_a_bucket_far_beyond_full_holds_one_large_gradient(tmp_path: Path) -> None:
    """A profile of GPUs names no tensors, but DDP closes its buckets: what gains is to do without that one."""
    case = make_case(6_303_000_057, "", "gpu")
    write_case(case, tmp_path)
    said = diagnose(tmp_path)

    assert [fault.kind for fault in case.truth.faults] == ["huge-tensor"]
    assert said.findings[0].cause == "oversize-gradient"
    assert said.findings[0].gain == pytest.approx(case.truth.gain, abs=0.03)


def test_ranks_whose_hosts_launch_nothing_are_slow_and_not_all_devices(tmp_path: Path) -> None:
    """The loop's own code sleeps on three of sixteen ranks for some of the steps: thirteen devices wait for collectives."""
    case = make_case(6_501_000_018, "", "gpu")
    write_case(case, tmp_path)
    first = diagnose(tmp_path).findings[0]

    assert [fault.describe() for fault in case.truth.faults] == ["slow-loop 62% of ranks 2, 3, 5, window, blocked"]
    assert (first.class_, first.cause, first.ranks) == ("straggler", "slow-host-code", (2, 3, 5))
    assert first.gain == pytest.approx(case.truth.gain, abs=0.12)


def test_hosts_that_are_all_slow_are_nobodys_fault(tmp_path: Path) -> None:
    """The loop's own code takes most of each step on all four ranks; the quickest of them waits in collectives a little more."""
    case = make_case(6_602_000_023, "", "gpu")
    write_case(case, tmp_path)
    first = diagnose(tmp_path).findings[0]

    assert case.truth.class_ == "compute"
    assert (first.class_, first.cause) == ("compute", "device-idle")


def test_what_slow_messages_cost_is_seen_in_the_collectives_too(tmp_path: Path) -> None:
    """In Horovod's file without ticks: messages of 7 ms, whose way back to the other ranks hides in the collectives' own time."""
    case = make_case(6_402_000_058, "", "horovod")
    write_case(case, tmp_path)
    first = diagnose(tmp_path).findings[0]

    assert [fault.kind for fault in case.truth.faults] == ["slow-negotiation"]
    assert (first.class_, first.cause) == ("communication", "high-latency")
    assert first.gain == pytest.approx(case.truth.gain, abs=0.05)


def test_collectives_of_devices_that_take_long_whatever_they_carry(tmp_path: Path) -> None:
    """Two of NCCL's collectives a step, 28 ms each with hardly any bytes: a network that is far away, not one that is narrow."""
    case = make_case(9_221_501_000_122, "", "gpu")
    write_case(case, tmp_path)
    first = diagnose(tmp_path).findings[0]

    assert [fault.kind for fault in case.truth.faults] == ["high-latency"]
    assert first.cause == "high-latency"
    assert first.gain == pytest.approx(case.truth.gain, abs=0.03)


@pytest.mark.parametrize(
    ("seed", "file_format", "cause", "tolerance"),
    [
        # All tensors wait for a rank that is late: not as long together as each of them one after the other.
        (118_869_422_000_037, "horovod", "late-in-some-steps", 0.02),
        # A tensor that waits for the huge one in front of it waits for no rank.
        (701_857_235_000_015, "horovod", "late-rank", 0.03),
        # What moves for a millisecond saves no more than that, though all waits for a rank meanwhile.
        (118_869_422_000_041, "horovod", "late-rank", 0.02),
        # Metrics between the update and the next forward pass.
        (960_998_221_000_053, "kineto", "blocking-calls", 0.03),
        # Growth counts from the first step on, and not from where it is clear of chance.
        (622_776_061_000_053, "kineto", "slowing-down", 0.1),
        # A loader that grows slower: collectives of some size do not come in every step.
        (7_000_071, "tlkit", "slow-loader", 0.05),
        # Batches that were ordered before the analysed steps are not made any sooner.
        (1_863_536_508_000_046, "tlkit", "slow-loader-on-some-ranks", 0.02),
        # Hosts with idle cores hide communication for nothing.
        (622_776_061_000_028, "tlkit", "late-gradients", 0.02),
        # The first of some metrics waits for a rank that is late; without them the gradients would.
        (501_561_136_000_130, "horovod", "late-rank", 0.1),
        # Answers of 13 ms: whenever a collective begins, it ends so long after it was agreed on.
        (501_561_136_000_105, "horovod", "high-latency", 0.03),
        # Workers of two ranks that are blocked for seconds, each behind the wait for the other: once in nineteen steps.
        (1_487_085_283_000_030, "tlkit", "slow-loader-on-some-ranks", 0.1),
        # All ranks wait for cores, each in steps of its own.
        (60_116_367_000_021, "tlkit", "starved-of-cores", 0.05),
        # A loader that is slow on all ranks: which device stands still, and which waits for that one, is chance.
        (1_908_984_489_000_035, "gpu", "slow-loader", 0.03),
        # Many collectives of few bytes: fusing them comes before a quicker network.
        (743_076_839_000_067, "horovod", "many-small-collectives", 0.02),
        # Forward that grows slower by a fifth: no step is much longer than the usual ones.
        (1_376_958_234_000_069, "tlkit", "slowing-down", 0.05),
        # The same in backward, where some steps are much longer by chance.
        (50_303_000_155, "tlkit", "slowing-down", 0.05),
        # Rank 0 lacks cores; Python's garbage is collected on both ranks, and does not make one of them slow.
        (997_916_960_000_031, "tlkit", "starved-rank", 0.02),
        # Rank 0 agrees with itself at once, and is late by itself: the others wait for messages, not for it.
        (685_545_386_000_106, "tlkit", "slow-negotiation", 0.05),
        # Slow launches are a seventh of the step, and a tenth of it is not ordinary any more.
        (997_916_960_000_124, "gpu", "device-idle-launch", 0.06),
        # Larger batches on rank 1, and one worker, which needs longer for them.
        (90_101_000_260, "tlkit", "uneven-batches", 0.03),
        # Rank 3 waits for no batch, only because the others' come a little later than its own.
        (90_101_000_127, "tlkit", "slow-loader", 0.06),
        # Waits for a loader in a third of the run, in which the ranks compute a little longer, too, by chance.
        (90_101_000_415, "tlkit", "slow-loader", 0.06),
    ],
)
def test_gains_that_were_far_off(seed: int, file_format: str, cause: str, tolerance: float, tmp_path: Path) -> None:
    case = make_case(seed, "", file_format)
    write_case(case, tmp_path)
    found = diagnose(tmp_path).findings[0]

    assert found.cause == cause
    assert found.gain == pytest.approx(max(case.truth.gains), abs=tolerance)


def test_a_later_collective_of_a_profile_is_no_late_gradient(tmp_path: Path) -> None:
    """The second of two a step comes late in any profile; that latency makes them long costs less than what is a fault there."""
    case = make_case(997_916_960_000_003, "", "kineto")
    write_case(case, tmp_path)
    verdict = analyze(tmp_path).verdict

    assert verdict.class_ == "healthy"
    assert "With half of what is sent" in verdict.sentence


@pytest.mark.parametrize(
    ("seed", "only", "steps"),
    [
        # Validation on one rank, a slow optimizer on two others: two faults, and no three slow ranks.
        (1_487_085_283_000_188, "", [("slow-optimizer", (1, 2)), ("periodic-slow-forward", (0,))]),
        # Two workers are too few once the optimizer is quicker; until then nothing waits for them.
        (1_558_589_981_000_041, TWO, [("slow-optimizer-step", (0, 1)), ("slow-loader", (0, 1))]),
        # The same on one of eight ranks.
        (1_558_589_981_000_013, TWO, [("stragglers-in-turn", (1, 2, 3, 5)), ("slow-loader-on-some-ranks", (1,))]),
        # Rank 1 lacks cores, which holds up nobody as long as rank 0 waits for its loader.
        (997_916_960_000_109, "", [("slow-loader-on-some-ranks", (0,)), ("slow-backward", (1,))]),
        # Workers that start anew come before a slow loader that gains hardly more.
        (997_916_960_000_197, "", [("object-collectives", (0, 1, 2, 3)), ("worker-start-up", (0, 1, 2, 3))]),
    ],
)
def test_plans_name_both_of_two_faults(
    seed: int, only: str, steps: list[tuple[str, tuple[int, ...]]], tmp_path: Path
) -> None:
    """Also the one that gains nothing before the other is gone."""
    case = make_case(seed, only, "tlkit")
    write_case(case, tmp_path)
    plan = diagnose(tmp_path).plan

    assert [(step.cause, step.ranks) for step in plan] == steps
    assert sum(step.gain for step in plan) == pytest.approx(case.truth.gain, abs=0.04)
