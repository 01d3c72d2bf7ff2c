"""What a job is, and random ones that have nothing wrong with them."""

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

#: A case has about so many events at most, and mostly far fewer.
MAX_EVENTS: Final = 90_000
MEDIAN_EVENTS: Final = 14_000
MIN_STEPS: Final = 20

#: No network without a fault is slower: 2.4 gigabits a second.
MIN_BYTES_PER_NS: Final = 0.3

RANKS: Final = (1, 2, 3, 4, 6, 8, 16, 32, 64)
RANKS_SHARES: Final = (0.07, 0.25, 0.04, 0.25, 0.05, 0.2, 0.09, 0.03, 0.02)


class Layer(NamedTuple):
    """A parameter: its gradient's bytes, and the share of backward's time that it takes."""

    name: str
    nbytes: int
    share: float
    is_partial: bool = False
    """Reduced within a part of the ranks only (`Job.parts`)."""


class Device(NamedTuple):
    """A GPU a rank, and how its host hands out work."""

    launch_ns: int
    """What the host needs for one kernel, the operator around it included."""
    copy_nbytes: int
    """Of a batch."""
    copy_bytes_per_ns: float
    is_pinned: bool
    """Whether the host goes on while a batch is copied."""
    syncs: int
    """How often the forward pass asks the device for a number."""
    ends_with_item: bool
    """Whether the loop reads the loss in each step; if not it waits for the step before."""
    dtype: str
    """Of gradients: float32 or bfloat16."""


class Call(NamedTuple):
    """Blocking collectives of user code, made after each `every`-th step, one after the other."""

    names: tuple[str, ...]
    kind: str
    nbytes: int
    every: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A training job; times in ns, of one step unless said otherwise."""

    ranks: int
    ranks_per_host: int
    steps: int
    warm_up: int
    warm_up_factor: float
    layers: tuple[Layer, ...]
    """In the order of the forward pass; gradients come the other way round."""
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    loop_ns: int
    """Python between the spans."""
    dataset_ns: int
    collate_ns: int
    workers: int
    persistent: bool
    epoch_steps: int
    spawn_ns: int
    """To start one worker."""
    common_sigma: float
    """How much a step varies, for all ranks alike."""
    own_sigma: float
    """How much each rank's step varies on its own."""
    latency_ns: int
    """Of one collective."""
    bytes_per_ns: float
    copy_bytes_per_ns: float
    """Into and out of the fusion buffer."""
    message_ns: int
    """One way between a rank and the coordinator."""
    cycle_ns: int
    is_eager: bool
    """Whether a rank that blocks asks at once, whatever the cycle."""
    threshold_nbytes: int
    """Of a fused batch; 0: nothing is fused."""
    overlaps: bool
    """Whether gradients are submitted as they become ready, not at the end of backward."""
    parts: tuple[tuple[int, ...], ...]
    """Process sets beside the global one, which share the ranks out; empty for none."""
    calls: tuple[Call, ...]
    elements: int
    """Of a batch, as handed to the model."""
    clock_error_ns: int
    has_cache: bool = True
    """Horovod itself: whether ranks' ready ticks are shown only when a tensor is new."""
    device: Device | None = None
    framework: str = "hvd"
    """`hvd`: our runtime, `horovod`: Horovod itself, `ddp`: DistributedDataParallel."""
    """How far the measured offsets of hosts may be off."""

    @property
    def work_ns(self) -> int:
        """What a rank is at work in one step, data apart."""
        return self.forward_ns + self.backward_ns + self.optimizer_ns + self.loop_ns

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return sum(layer.nbytes for layer in self.layers)

    def wire_ns(self, nbytes: int) -> float:
        """How long these bytes are under way."""
        return nbytes * self.ring_factor / self.bytes_per_ns

    @property
    def ring_factor(self) -> float:
        """How often a byte crosses the slowest link in a ring."""
        return 2 * (self.ranks - 1) / self.ranks


def _layers(chance: np.random.Generator, count: int) -> tuple[Layer, ...]:
    """Sizes over several orders of magnitude, time in proportion to a root of the size."""
    sizes = np.exp(chance.normal(math.log(200_000), 1.8, count))
    shares = np.sqrt(sizes) * np.exp(chance.normal(0, 0.4, count))
    shares /= shares.sum()
    # The last gradients wait for nobody's forward pass: models have small layers at their input.
    return tuple(
        Layer(f"layers.{number}.weight", max(4, int(size) // 4 * 4), float(share))
        for number, (size, share) in enumerate(
            zip(np.sort(sizes) if chance.random() < 0.5 else sizes, shares, strict=True)
        )
    )


def _extent(chance: np.random.Generator, per_layer: int) -> tuple[int, int, int]:
    """Ranks, steps and layers that make a case of a bearable size; `per_layer` events are written of each."""
    ranks = int(chance.choice(RANKS, p=RANKS_SHARES))
    events = min(MAX_EVENTS, math.exp(chance.normal(math.log(MEDIAN_EVENTS), 0.7)))
    layers = int(np.clip(math.exp(chance.normal(math.log(12), 0.7)), 3, 80))
    while layers > 3 and ranks * MIN_STEPS * (25 + per_layer * layers) > MAX_EVENTS:
        layers -= 1
    steps = int(events / (ranks * (25 + per_layer * layers)))
    return ranks, int(np.clip(steps, MIN_STEPS, 200)), layers


def random_job(chance: np.random.Generator, file_format: str = "tlkit") -> Job:
    """A healthy one, as far as its numbers tell; `cases.settle` sees to the rest."""
    ranks, steps, layers = _extent(chance, 13 if file_format == "gpu" else 10)
    step_ns = math.exp(chance.uniform(math.log(6e6), math.log(1.5e9)))
    forward, backward = chance.uniform(0.2, 0.4), chance.uniform(0.4, 0.7)
    optimizer, loop = chance.uniform(0.01, 0.08), chance.uniform(0.001, 0.01)
    whole = forward + backward + optimizer + loop
    model = _layers(chance, layers)
    workers = int(chance.choice((0, 1, 2, 4, 8), p=(0.35, 0.15, 0.25, 0.15, 0.1)))
    # A loader in the main process has to be quick, workers have to keep up.
    fetch_ns = step_ns * (chance.uniform(0.002, 0.015) if not workers else workers * chance.uniform(0.05, 0.6))
    collate = chance.uniform(0.1, 0.4)
    wire_ns = step_ns * chance.uniform(0.02, 0.3)
    nbytes = sum(layer.nbytes for layer in model)
    wants_parts = ranks >= 4 and ranks % 2 == 0 and chance.random() < 0.12
    if wants_parts:
        model = tuple(layer._replace(is_partial=number >= layers * 2 // 3) for number, layer in enumerate(model))
    half = ranks // 2
    job = Job(
        ranks=ranks,
        ranks_per_host=min(ranks, int(chance.choice((2, 4, 8)))) if chance.random() < 0.6 else ranks,
        steps=steps,
        warm_up=int(chance.integers(1, 5)),
        warm_up_factor=float(chance.uniform(1.0, 5)),
        layers=model,
        forward_ns=int(step_ns * forward / whole),
        backward_ns=int(step_ns * backward / whole),
        optimizer_ns=int(step_ns * optimizer / whole),
        loop_ns=int(step_ns * loop / whole),
        dataset_ns=int(fetch_ns * (1 - collate)),
        collate_ns=int(fetch_ns * collate),
        workers=workers,
        persistent=bool(chance.random() < 0.5),
        epoch_steps=steps,
        spawn_ns=int(chance.uniform(8e6, 60e6)),
        common_sigma=float(chance.uniform(0.01, 0.15)),
        own_sigma=float(chance.uniform(0.002, 0.03)),
        latency_ns=int(min(chance.uniform(50e3, 600e3), step_ns / 100)),
        bytes_per_ns=max(MIN_BYTES_PER_NS, float(nbytes * 2 * max(ranks - 1, 0.5) / ranks / wire_ns)),
        copy_bytes_per_ns=float(chance.uniform(3, 12)),
        message_ns=int(min(chance.uniform(20e3, 150e3), step_ns / 200)),
        cycle_ns=int(min(chance.uniform(0.5e6, 5e6), step_ns / 20)),
        is_eager=True,
        threshold_nbytes=int(chance.choice((8, 32, 64, 128))) << 20,
        overlaps=True,
        parts=(tuple(range(half)), tuple(range(half, ranks))) if wants_parts else (),
        calls=(),
        elements=int(chance.integers(1_000, 1_000_000)),
        clock_error_ns=int(chance.uniform(1e3, min(100e3, step_ns / 200))),
    )
    return _as_recorded(job, chance, file_format)


def _as_recorded(job: Job, chance: np.random.Generator, file_format: str) -> Job:
    """The job as those run it whose traces have this format."""
    if file_format == "horovod":
        return replace(job, framework="horovod", is_eager=False, parts=(), has_cache=bool(chance.random() < 0.5))
    if file_format == "kineto":
        return replace(job, framework="ddp", parts=())
    if file_format == "gpu":
        return replace(job, framework="ddp", parts=(), device=_random_device(job, chance))
    return job


def _random_device(job: Job, chance: np.random.Generator) -> Device:
    kernels = 3 * len(job.layers) + 4
    copy_nbytes = int(chance.integers(10_000, 10_000_000))
    return Device(
        launch_ns=int(min(chance.uniform(6e3, 40e3), 0.5 * job.work_ns / kernels)),
        copy_nbytes=copy_nbytes,
        copy_bytes_per_ns=max(float(chance.uniform(8, 25)), copy_nbytes / (0.004 * job.work_ns)),
        is_pinned=bool(chance.random() < 0.7),
        syncs=0,
        ends_with_item=bool(chance.random() < 0.5),
        dtype=str(chance.choice(("float32", "bfloat16"))),
    )
