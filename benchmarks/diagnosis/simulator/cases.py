"""A case: a random job, what is wrong with it, and how much faster it would be without."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from .fault_kinds import KINDS, SHOWN
from .faults import ALWAYS, BURSTS, EVERY, IN_TURN, SHARED_BURSTS, Fault
from .jobs import Job, random_job
from .noise import Noise
from .plan import Plan, make_plan
from .recording import Recording
from .run import play

#: A job in which ranks wait longer, as shares of the step, is no healthy one.
MAX_DATA_WAIT: Final = 0.015
MAX_WAIT: Final = 0.02
_TRIES: Final = 7
#: Steps in which that shows.
_PROBED: Final = 16

#: Formats of a mixed run, by share.
MIXTURE: Final = {"tlkit": 0.5, "horovod": 0.15, "kineto": 0.15, "gpu": 0.2}

HEALTHY_SHARE: Final = 0.27
DOUBLE_SHARE: Final = 0.15
#: In place of a kind: two faults of any kinds.
TWO: Final = "two"


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """What a diagnosis should say."""

    class_: str
    """Of the fault that costs most, "healthy" without one."""
    faults: tuple[Fault, ...]
    gains: tuple[float, ...]
    """By fault: share of the mean step that is gained without it, the other one staying."""
    gain: float
    """Without any fault."""
    step_ns: float
    clean_step_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One simulated run and the truth about it."""

    seed: int
    job: Job
    """With its faults."""
    noise: Noise
    plan: Plan
    recording: Recording
    truth: Truth
    file_format: str


def class_of(fault: Fault, file_format: str) -> str:
    """The class that a diagnosis should name."""
    kind = KINDS[fault.kind]
    if file_format == "horovod" and kind.somewhere:  # it shows that a rank comes late, and not why
        return "straggler"
    if fault.changes_ranks and kind.somewhere == "straggler":
        return "straggler"
    return kind.everywhere if fault.is_everywhere else kind.somewhere


class NotSettled(Exception):
    """Ranks of this job wait whatever its network."""


def settle(job: Job, noise: Noise) -> Job:
    """The job with a quicker network, loader and steadier ranks, until hardly anybody waits.

    Raises:
        NotSettled: it is of no use.
    """
    for _ in range(_TRIES):
        short = replace(job, steps=min(job.steps, job.warm_up + _PROBED), epoch_steps=max(job.epoch_steps, _PROBED))
        data, others = play(make_plan(short, noise)).waiting_shares()
        if data <= MAX_DATA_WAIT and others <= MAX_WAIT:
            return job
        if data > MAX_DATA_WAIT and job.workers:
            job = replace(job, workers=job.workers + max(1, job.workers // 2))
        elif data > MAX_DATA_WAIT:
            less = MAX_DATA_WAIT / data * 0.8
            job = replace(job, dataset_ns=int(job.dataset_ns * less), collate_ns=int(job.collate_ns * less))
        if others > MAX_WAIT:
            if job.device is not None:
                job = _steadier_host(job)
            job = replace(
                job,
                latency_ns=int(job.latency_ns / 2),
                bytes_per_ns=job.bytes_per_ns * 2,
                copy_bytes_per_ns=job.copy_bytes_per_ns * 2,
                message_ns=int(job.message_ns / 2),
                cycle_ns=int(job.cycle_ns / 1.5),
                own_sigma=job.own_sigma * 0.6,
            )
    raise NotSettled


def _steadier_host(job: Job) -> Job:
    """With a quicker host: a device must not wait for it."""
    assert job.device is not None
    device = job.device._replace(
        launch_ns=int(job.device.launch_ns / 1.4), copy_bytes_per_ns=job.device.copy_bytes_per_ns * 1.4
    )
    return replace(
        job,
        device=device,
        loop_ns=int(job.loop_ns / 1.7),
        dataset_ns=job.dataset_ns if job.workers else int(job.dataset_ns / 1.7),
        collate_ns=job.collate_ns if job.workers else int(job.collate_ns / 1.7),
    )


def random_fault(chance: np.random.Generator, job: Job, file_format: str, only: str = "") -> Fault:
    """A fault that this job can have."""
    while True:
        name = only or str(chance.choice(sorted(SHOWN[file_format])))
        kind = KINDS[name]
        has_peers = job.ranks > 1
        if not has_peers and (kind.needs_peers or not kind.everywhere):
            if only:
                raise ValueError(f"a job of {job.ranks} ranks cannot have {only}")
            continue
        share = chance.uniform(0, 0.1) if chance.random() < 0.2 else chance.uniform(0.08, kind.max_share)
        is_somewhere = bool(kind.somewhere) and has_peers and (not kind.everywhere or chance.random() < 0.65)
        if file_format == "horovod" and kind.somewhere:
            if not has_peers:
                continue
            is_somewhere = True
        pattern = str(chance.choice(kind.patterns))
        most = max(1, job.ranks // 2)
        count = 1 if name == "validation" or chance.random() < 0.6 else int(chance.integers(1, most + 1))
        ranks = tuple(sorted(chance.choice(job.ranks, count, replace=False).tolist()))
        ranks = (0,) if name == "validation" else ranks if is_somewhere else tuple(range(job.ranks))
        if pattern == IN_TURN and (len(ranks) < 2 or not is_somewhere):
            pattern = ALWAYS
        is_blocked = kind.may_block and bool(chance.random() < 0.5) and (job.device is None or name == "slow-loop")
        if kind.needs_trace_of_time and not is_somewhere and pattern == ALWAYS:
            pattern, is_blocked = (EVERY, is_blocked) if chance.random() < 0.5 else (ALWAYS, True)
        if pattern == BURSTS and not is_somewhere and (not kind.somewhere or chance.random() < 0.6):
            pattern = SHARED_BURSTS
        every = int(chance.integers(3, 11))
        share = min(share, 0.5) if pattern == EVERY else share
        first = chance.uniform(0.1, 0.5)
        return Fault(
            kind=name,
            share=float(share),
            ranks=ranks,
            is_everywhere=not is_somewhere,
            pattern=pattern,
            every=min(every, max(2, job.steps // 4)),
            window=(float(first), float(first + chance.uniform(0.25, 0.5))),
            is_blocked=is_blocked,
        )


def random_faults(chance: np.random.Generator, job: Job, file_format: str, only: str = "") -> tuple[Fault, ...]:
    """None, one, or two of different kinds."""
    if only == TWO:
        return _two_faults(chance, job, file_format)
    if only == "healthy" or (not only and chance.random() < HEALTHY_SHARE):
        return ()
    faults = [random_fault(chance, job, file_format, only)]
    if not only and chance.random() < DOUBLE_SHARE / (1 - HEALTHY_SHARE):
        second = random_fault(chance, job, file_format)
        if second.kind != faults[0].kind and not _clash(faults[0], second):
            faults.append(second)
    return tuple(faults)


def _two_faults(chance: np.random.Generator, job: Job, file_format: str) -> tuple[Fault, Fault]:
    """Two of different kinds, which do not clash."""
    while True:
        first, second = random_fault(chance, job, file_format), random_fault(chance, job, file_format)
        if first.kind != second.kind and not _clash(first, second):
            return first, second


def _clash(first: Fault, second: Fault) -> bool:
    """Faults that change the same part of the job hide each other's size."""
    loaders = {"slow-dataset", "slow-collate", "few-workers", "worker-start-up"}
    network = {name for name, kind in KINDS.items() if kind.everywhere == "communication"}
    return any({first.kind, second.kind} <= group for group in (loaders, network))


def spoiled(job: Job, noise: Noise, faults: tuple[Fault, ...]) -> Plan:
    """The plan of a job with faults."""
    for fault in faults:
        job = KINDS[fault.kind].spoil_job(job, fault)
    plan = make_plan(job, noise)
    for fault in faults:
        KINDS[fault.kind].spoil_plan(plan, fault)
    return plan


def make_case(seed: int, only: str = "", file_format: str = "tlkit") -> Case:
    """The case of a seed: the same every time.

    Args:
        only: a kind of fault, "healthy", or "two" for two faults at once; "" for any.
        file_format: `tlkit`, `horovod`, `kineto`, `gpu` (Kineto's, with devices), or `mixed`.
    """
    if file_format == "mixed":
        file_format = str(Noise(seed).generator("format").choice(list(MIXTURE), p=list(MIXTURE.values())))
    for attempt in itertools.count():
        noise = Noise(seed + (attempt << 40))
        try:
            job, faults = _draw(noise, only, file_format)
        except NotSettled:
            continue
        return _with_truth(seed, noise, job, faults, file_format)
    raise AssertionError


def _draw(noise: Noise, only: str, file_format: str) -> tuple[Job, tuple[Fault, ...]]:
    """A healthy job, and what is to be wrong with it."""
    chance = noise.generator("job")
    job = random_job(chance, file_format)
    while job.ranks == 1 and (file_format == "horovod" or only not in {"", "healthy"}):
        job = random_job(chance, file_format)
    faults = random_faults(noise.generator("fault"), job, file_format, only)
    for fault in faults:
        job = KINDS[fault.kind].prepare(job, fault)
    return settle(job, noise), faults


def _with_truth(seed: int, noise: Noise, job: Job, faults: tuple[Fault, ...], file_format: str) -> Case:
    """Play the job with its faults, and without each."""
    plan = spoiled(job, noise, faults)
    recording = play(plan)
    step_ns = recording.mean_step_ns()

    def gain_of(left: tuple[Fault, ...]) -> float:
        return 1 - play(spoiled(job, noise, left)).mean_step_ns() / step_ns

    gain = gain_of(()) if faults else 0.0
    gains = (gain,) if len(faults) == 1 else tuple(gain_of(tuple(f for f in faults if f != one)) for one in faults)
    first = max(range(len(faults)), key=gains.__getitem__, default=-1)
    truth = Truth(
        class_=class_of(faults[first], file_format) if faults else "healthy",
        faults=faults,
        gains=gains,
        gain=gain,
        step_ns=step_ns,
        clean_step_ns=step_ns * (1 - gain),
    )
    assert math.isfinite(step_ns)
    return Case(
        seed=seed, job=plan.job, noise=noise, plan=plan, recording=recording, truth=truth, file_format=file_format
    )
