"""The simulator of jobs with faults: its arithmetic, its files, and its judgement."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.vocabulary import HOST_CORES, HOST_CPU, PROCESS_CPU

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "diagnosis"))

from simulate import write_case
from simulator.cases import Case, Truth, make_case, spoiled
from simulator.device import DeviceRecording
from simulator.fault_kinds import KINDS, SHOWN
from simulator.faults import Fault
from simulator.jobs import Call, Device, Job, Layer
from simulator.judging import Found, judge
from simulator.network import bucket_ends
from simulator.noise import Noise, drifts
from simulator.plan import make_plan
from simulator.run import play
from simulator.shards import write_shards

MS = 1_000_000


def plain_job(**changes: Any) -> Job:
    """Two ranks without any noise, and a network that costs nothing; 100 ms of work a step."""
    job = Job(
        ranks=2, ranks_per_host=2, steps=20, warm_up=2, warm_up_factor=1.0,
        layers=tuple(Layer(f"layers.{number}.weight", 1_000_000, 0.1) for number in range(10)),
        forward_ns=30 * MS, backward_ns=60 * MS, optimizer_ns=8 * MS, loop_ns=2 * MS, dataset_ns=0, collate_ns=0,
        workers=0, persistent=True, epoch_steps=20, spawn_ns=MS, common_sigma=0.0, own_sigma=0.0,
        latency_ns=0, bytes_per_ns=1e6, copy_bytes_per_ns=1e6, message_ns=0, cycle_ns=1000, is_eager=True,
        threshold_nbytes=1 << 30, overlaps=True, parts=(), calls=(), elements=100, clock_error_ns=0,
    )  # fmt: skip
    return replace(job, **changes)


def step_ms(job: Job, *faults: Fault) -> float:
    return play(spoiled(job, Noise(3), faults)).mean_step_ns() / MS


def fault(kind: str, share: float, *ranks: int, **more: Any) -> Fault:
    return Fault(kind=kind, share=share, ranks=ranks or (0, 1), is_everywhere=not ranks, **more)


# What a step must take is known in simple jobs.


def test_a_job_without_a_fault_takes_as_long_as_its_work() -> None:
    assert step_ms(plain_job()) == pytest.approx(100, rel=0.005)
    assert step_ms(plain_job(ranks=1)) == pytest.approx(100, rel=0.005)


@pytest.mark.parametrize("kind", ["slow-forward", "slow-backward", "slow-optimizer", "slow-loop", "starved"])
def test_one_slow_rank_holds_up_all(kind: str) -> None:
    assert step_ms(plain_job(), fault(kind, 0.5, 1)) == pytest.approx(200, rel=0.02)


def test_ranks_that_are_slow_in_turn_cost_as_much_as_one_that_always_is() -> None:
    assert step_ms(plain_job(), fault("slow-forward", 0.5, 0, 1, pattern="in turn")) == pytest.approx(200, rel=0.03)


def test_every_fourth_step_carries_four_times_the_amount() -> None:
    job = plain_job(steps=42)
    recording = play(spoiled(job, Noise(3), (fault("slow-loop", 0.2, pattern="every k-th", every=4),)))
    durations = [(end - start) / MS for start, end in recording.ranks[0].steps]
    # What the loop does after a step belongs to the next one.
    assert all((value > 190) == (step % 4 == 0) for step, value in enumerate(durations) if step)
    assert recording.mean_step_ns() / MS == pytest.approx(125, rel=0.02)


def test_communication_after_backward_adds_its_bytes_and_latency() -> None:
    job = plain_job(overlaps=False, latency_ns=5 * MS, bytes_per_ns=0.5)
    # 10 MB cross a link of two ranks once.
    assert step_ms(replace(job, copy_bytes_per_ns=1e9)) == pytest.approx(100 + 5 + 20, rel=0.05)


def test_overlapped_communication_costs_its_tail_only() -> None:
    job = plain_job(bytes_per_ns=0.5, latency_ns=0)
    assert step_ms(job) == pytest.approx(100 + 2, rel=0.02)


def test_without_fusion_every_gradient_pays_the_latency() -> None:
    fused = plain_job(overlaps=False, latency_ns=3 * MS)
    assert step_ms(fused) == pytest.approx(103, rel=0.01)
    assert step_ms(replace(fused, threshold_nbytes=0)) == pytest.approx(130, rel=0.01)


@pytest.mark.parametrize(("workers", "expected"), [(0, 350), (1, 250), (2, 125), (4, 100)])
def test_workers_share_the_batches(workers: int, expected: float) -> None:
    job = plain_job(workers=workers, dataset_ns=200 * MS, collate_ns=50 * MS, steps=60, warm_up=20, epoch_steps=60)
    assert step_ms(job) == pytest.approx(expected, rel=0.03)


def test_blocking_calls_are_paid_one_by_one() -> None:
    job = plain_job(latency_ns=2 * MS, calls=(Call(("a", "b", "c"), "allreduce", 4),))
    assert step_ms(job) == pytest.approx(100 + 2 + 3 * 2, rel=0.01)


def test_gradients_travel_in_buckets() -> None:
    layers = tuple(Layer(f"layers.{number}.weight", 10 << 20, 0.1) for number in range(10))
    assert bucket_ends(plain_job(layers=layers)) == {
        "allreduce.layers.9.weight", "allreduce.layers.6.weight", "allreduce.layers.3.weight", "allreduce.layers.0.weight"
    }  # fmt: skip


def test_a_device_is_as_quick_as_its_kernels_or_its_host() -> None:
    device = Device(20_000, 1000, 10, True, 0, False, "float32")
    job = plain_job(framework="ddp", device=device, loop_ns=0)
    assert step_ms(job) == pytest.approx(98, rel=0.01)
    slow_host = replace(job, device=device._replace(launch_ns=8 * MS))
    # 10 kernels forward, 20 backward, the copy, the optimizer's, and two buckets' collectives.
    launches = 10 + 20 + 1 + 1 + len(bucket_ends(job))
    assert step_ms(slow_host) == pytest.approx(8 * launches, rel=0.01)


# Luck stays the same when a fault is taken away.


def test_a_fault_changes_nothing_but_its_own_item() -> None:
    job = plain_job(own_sigma=0.1, common_sigma=0.1)
    clean = make_plan(job, Noise(5))
    faulty = spoiled(job, Noise(5), (fault("slow-forward", 0.3, 1),))
    assert np.array_equal(clean.busy["backward"], faulty.busy["backward"])
    assert np.array_equal(clean.busy["forward"][0], faulty.busy["forward"][0])
    assert (faulty.busy["forward"][1] > clean.busy["forward"][1]).all()
    assert np.array_equal(clean.wire, faulty.wire)


@pytest.mark.parametrize("file_format", sorted(SHOWN))
def test_a_seed_is_a_case(file_format: str, tmp_path: Path) -> None:
    for name in ("once", "again"):
        write_case(make_case(8, file_format=file_format), tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "once").iterdir())
    assert files
    assert all((tmp_path / "once" / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_can_happen_and_costs_something(kind: str) -> None:
    file_format = next(name for name in ("tlkit", "gpu", "horovod") if kind in SHOWN[name])
    gains = [make_case(seed, kind, file_format).truth.gain for seed in (12, 15)]
    assert max(gains) > 0.02
    assert all(-0.03 < gain < 0.95 for gain in gains)


# The files are what the readers expect.


def test_shards_read_back_as_they_were_simulated(tmp_path: Path) -> None:
    case = make_case(21)
    write_case(case, tmp_path / "run")
    trace = open_trace(tmp_path / "run")
    trace.check()
    assert not trace.meta.dropped
    assert not trace.meta.notes
    assert trace.meta.ranks == tuple(range(case.job.ranks))
    for rank, recorded in enumerate(case.recording.ranks):
        steps = trace.steps[trace.steps["rank"] == rank]
        took = [end - start for start, end in recorded.steps]
        # Clocks run apart, and how far is measured now and then.
        assert (steps["end_ns"] - steps["start_ns"]).tolist() == pytest.approx(took, rel=1e-5)
        collectives = trace.collectives[trace.collectives["rank"] == rank]
        assert sorted(collectives["nbytes"]) == sorted(
            sum(carried.tensor.nbytes for carried in executed.carried) for executed in recorded.executed
        )
        assert len(trace.tensors[trace.tensors["rank"] == rank]) == sum(len(item.carried) for item in recorded.executed)
        counters = trace.counters[trace.counters["rank"] == rank]
        is_sampled = counters["name"].isin([PROCESS_CPU, HOST_CPU, HOST_CORES])
        assert len(counters[~is_sampled]) == len(recorded.counters)
        busy = counters.loc[counters["name"] == HOST_CPU, "value"]
        assert (len(busy) > 0) == (rank % case.job.ranks_per_host == 0)
        assert (busy <= 100 / 8).all()


def test_horovods_file_reads_back(tmp_path: Path) -> None:
    case = make_case(22, file_format="horovod")
    write_case(case, tmp_path / "run")
    trace = open_trace(tmp_path / "run")
    assert trace.meta.format == "horovod"
    assert not trace.meta.dropped
    assert len(trace.tensors) == sum(len(executed.carried) for executed in case.recording.ranks[0].executed)


@pytest.mark.parametrize("file_format", ["kineto", "gpu"])
def test_profiles_read_back(file_format: str, tmp_path: Path) -> None:
    seed = next(seed for seed in range(30, 60) if make_case(seed, file_format=file_format).job.ranks > 1)
    case = make_case(seed, file_format=file_format)
    write_case(case, tmp_path / "run")
    trace = open_trace(tmp_path / "run")
    assert trace.meta.format == "kineto"
    assert trace.meta.size == case.job.ranks
    assert not trace.meta.dropped
    assert len(trace.steps) == case.job.ranks * case.job.steps
    recorded = case.recording.ranks[0]
    if isinstance(recorded, DeviceRecording):
        expected = sum(kernel.launch.kind == "nccl" for kernel in recorded.kernels)
    else:
        expected = len(recorded.executed)
    assert len(trace.collectives[trace.collectives["rank"] == 0]) == expected


# Judgement.


def _case(gain: float, *faults: Fault) -> Case:
    job = plain_job(ranks=4)
    truth = Truth(class_="", faults=faults, gains=(gain,) * len(faults), gain=gain, step_ns=1.0, clean_step_ns=1 - gain)
    plan = make_plan(job, Noise(1))
    return Case(seed=1, job=job, noise=Noise(1), plan=plan, recording=play(plan), truth=truth, file_format="tlkit")


def _found(class_: str, cause: str, *ranks: int, gain: float = 0.3) -> Found:
    return Found(class_=class_, cause=cause, ranks=ranks, gain=gain)


@pytest.mark.parametrize(
    ("gain", "found", "is_right"),
    [
        (0.3, _found("straggler", "slow-forward", 1), True),
        (0.3, _found("straggler", "periodic-slow-forward", 1), True),
        (0.3, _found("straggler", "slow-forward", 0), False),
        (0.3, _found("straggler", "slow-forward", 0, 1), False),
        (0.3, _found("compute", "slow-forward", 1), False),
        (0.3, _found("straggler", "uneven-batches", 1), False),
        (0.3, None, False),
        (0.05, None, True),
        (0.05, _found("straggler", "slow-forward", 1), True),
        (0.05, _found("data", "slow-loader"), False),
        (0.01, None, True),
        (0.01, _found("straggler", "slow-forward", 1), False),
        (0.01, _found("straggler", "slow-forward", 1, gain=0.04), True),
    ],
)  # fmt: skip
def test_the_top_finding_is_judged(gain: float, found: Found | None, is_right: bool) -> None:
    verdict = judge(_case(gain, fault("slow-forward", 0.3, 1)), [found] if found else [])
    assert verdict.is_right is is_right


def test_a_finding_in_a_healthy_run_is_wrong() -> None:
    assert judge(_case(0.0), []).is_right
    assert not judge(_case(0.0), [_found("data", "slow-loader", gain=0.06)]).is_right


def test_an_honest_unknown_is_right_where_the_file_cannot_tell() -> None:
    """Horovod's file without ticks does not show who is late; with ticks it does."""
    case = _case(0.3, fault("slow-forward", 0.3, 1))
    horovod = replace(case, file_format="horovod")
    ticks = replace(horovod, job=replace(case.job, has_cache=False))

    assert judge(horovod, [], is_unknown=True).is_doubt
    assert judge(horovod, [], is_unknown=True).is_right
    assert not judge(horovod, [], is_unknown=False).is_right
    assert not judge(ticks, [], is_unknown=True).is_right
    assert not judge(case, [], is_unknown=True).is_right


def test_another_remedy_may_promise_less_than_the_fault_costs() -> None:
    """Half the bytes of a slow link are no promise that the link becomes quick; more than that there is not to gain."""
    case = _case(0.3, replace(fault("slow-link", 0.3), is_everywhere=True))

    assert judge(case, [_found("communication", "bandwidth-bound", gain=0.1)]).gain_error == 0
    assert judge(case, [_found("communication", "bandwidth-bound", gain=0.5)]).gain_error == pytest.approx(20)
    assert judge(case, [_found("communication", "slow-link", gain=0.1)]).gain_error == pytest.approx(20)


def test_a_plan_names_both_faults() -> None:
    """What the second one gains counts when the first is gone."""
    faults = fault("slow-forward", 0.3, 1), fault("slow-optimizer", 0.3, 2)
    case = _case(0.5, *faults)
    case = replace(case, truth=replace(case.truth, gains=(0.3, 0.02)))
    forward, optimizer = _found("straggler", "slow-forward", 1), _found("straggler", "slow-optimizer", 2, gain=0.15)

    both = judge(case, [forward], plan=[forward, optimizer])
    one = judge(case, [forward], plan=[forward])

    assert (both.plan_right, one.plan_right) == (True, False)
    assert both.plan_error == pytest.approx(5)
    assert judge(_case(0.3, faults[0]), [forward], plan=[forward]).plan_right is None


def test_clocks_that_run_apart_are_measured_again(tmp_path: Path) -> None:
    """A run of two minutes on two hosts: what happens at once on both stands at the same time in the trace."""
    job = plain_job(ranks=2, ranks_per_host=1, steps=40, epoch_steps=40, forward_ns=3_000 * MS)
    noise = Noise(3)
    recording = play(make_plan(job, noise))
    write_shards(recording, job, noise, tmp_path)
    drift = drifts(noise, 1)[0]
    trace = open_trace(tmp_path)
    ends = trace.steps.pivot(index="step", columns="rank", values="end_ns")

    assert abs(drift) * recording.ranks[0].steps[-1][1] > MS / 10
    assert (ends[0] - ends[1]).abs().max() < 0.02 * MS
