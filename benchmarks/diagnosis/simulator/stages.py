"""Pipelines: stages on ranks, micro-batches that travel as messages, forward passes before backward passes (GPipe's order).

Nothing is common to the stages but their messages: a stage begins its next step when its own optimizer is through.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from tlkit.timeline.record.shard_format import ShardClock, ShardFormat, ShardHeader

from .noise import Floats, Noise

EQUAL, UNEQUAL, SLOW_RANK, SLOW_MESSAGES = "equal", "unequal stages", "slow rank", "slow messages"
KINDS: Final = (EQUAL, UNEQUAL, SLOW_RANK, SLOW_MESSAGES)
_COMPUTE, _COMMUNICATION = 1, 3
_START_NS: Final = 1_500_000_000
_ORIGIN_NS: Final = 58_858_000_395_956
_EPOCH_NS: Final = 1_790_000_000_000_000_000
_BETWEEN_NS: Final = 5_000


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline; times in ns, of one micro-batch unless said otherwise."""

    kind: str
    seed: int
    forward_ns: tuple[float, ...]
    """By stage."""
    extra_ns: tuple[float, ...]
    """What a stage sleeps in each forward pass."""
    optimizer_ns: int
    """Of a step."""
    micro_batches: int
    steps: int
    nbytes: int
    latency_ns: int
    bytes_per_ns: float
    sigma: float

    @property
    def stages(self) -> int:
        return len(self.forward_ns)

    @property
    def slow(self) -> tuple[int, ...]:
        """The ranks that a diagnosis should name."""
        if self.kind not in {UNEQUAL, SLOW_RANK}:
            return ()
        own = np.add(np.multiply(3, self.forward_ns), self.extra_ns)
        return (int(np.argmax(own)),)

    def healed(self) -> "Pipeline":
        """Without what is wrong: layers spread evenly, nobody asleep, messages that take no time to speak of."""
        mean = float(np.mean(self.forward_ns))
        quick = max(self.bytes_per_ns, self.nbytes / (0.02 * mean)) if self.kind == SLOW_MESSAGES else self.bytes_per_ns
        forward = (mean,) * self.stages if self.kind == UNEQUAL else self.forward_ns
        return replace(self, forward_ns=forward, extra_ns=(0.0,) * self.stages, bytes_per_ns=quick)


@dataclass(slots=True)
class StageRecording:
    """What one rank leaves behind: spans of computation, messages, steps; true time."""

    spans: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Name, category, start, end."""
    messages: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    """SEND or RECV, peer, number, asked, end."""
    steps: list[tuple[int, int]] = field(default_factory=list)


def random_pipeline(seed: int) -> Pipeline:
    """The pipeline of a seed: the same every time."""
    chance = Noise(seed).generator("pipeline")
    stages = int(chance.integers(2, 7))
    kind = str(chance.choice(KINDS))
    forward = float(np.exp(chance.uniform(np.log(1e6), np.log(40e6))))
    share = chance.uniform(0.25, 1.2)
    busy = int(chance.integers(stages))
    times = [forward * (1 + share * (number == busy and kind == UNEQUAL)) for number in range(stages)]
    nbytes = int(chance.integers(20_000, 4_000_000))
    # A backward pass takes as long as two forward passes: so much may a message take in a healthy run.
    wire_ns = forward * (chance.uniform(0.3, 1.5) if kind == SLOW_MESSAGES else chance.uniform(0.001, 0.02))
    return Pipeline(
        kind=kind,
        seed=seed,
        forward_ns=tuple(times),
        extra_ns=tuple(3 * forward * share * (number == busy and kind == SLOW_RANK) for number in range(stages)),
        optimizer_ns=int(forward * chance.uniform(0.05, 0.5)),
        micro_batches=int(chance.integers(stages, 4 * stages + 1)),
        steps=int(chance.integers(20, 50)),
        nbytes=nbytes,
        latency_ns=int(min(chance.uniform(30e3, 200e3), forward / 50)),
        bytes_per_ns=nbytes / wire_ns,
        sigma=float(chance.uniform(0.005, 0.05)),
    )


def play_stages(pipeline: Pipeline) -> list[StageRecording]:
    """All steps of all stages."""
    shape = pipeline.stages, pipeline.steps, pipeline.micro_batches
    noise = Noise(pipeline.seed)
    forward = noise.factors("forward", shape, pipeline.sigma) * np.array(pipeline.forward_ns)[:, None, None]
    forward += np.array(pipeline.extra_ns)[:, None, None]
    backward = noise.factors("backward", shape, pipeline.sigma) * 2 * np.array(pipeline.forward_ns)[:, None, None]
    recordings = [StageRecording() for _ in range(pipeline.stages)]
    now = [0] * pipeline.stages
    for step in range(pipeline.steps):
        begun = list(now)
        _pass(pipeline, recordings, now, forward[:, step], "FORWARD", step)
        _pass(pipeline, recordings, now, backward[:, step], "BACKWARD", step)
        for rank, recording in enumerate(recordings):
            _work(recording, now, rank, "OPTIMIZER_STEP", pipeline.optimizer_ns)
            recording.steps.append((begun[rank], now[rank]))
            now[rank] += _BETWEEN_NS
    return recordings


def _work(recording: StageRecording, now: list[int], rank: int, name: str, took_ns: float) -> None:
    begun, now[rank] = now[rank], now[rank] + int(took_ns)
    category = {"FORWARD": "forward", "BACKWARD": "backward", "OPTIMIZER_STEP": "optimizer"}[name]
    recording.spans.append((name, category, begun, now[rank]))


def _pass(
    pipeline: Pipeline, recordings: list[StageRecording], now: list[int], took_ns: Floats, name: str, step: int
) -> None:
    """All micro-batches through all stages, in one direction."""
    order = range(pipeline.stages) if name == "FORWARD" else range(pipeline.stages - 1, -1, -1)
    under_way_ns = int(pipeline.latency_ns + pipeline.nbytes / pipeline.bytes_per_ns)
    arrived: list[int] = []
    for position, rank in enumerate(order):
        ahead = order[position - 1] if position else -1
        behind = order[position + 1] if position + 1 < pipeline.stages else -1
        sent: list[int] = []
        for batch in range(pipeline.micro_batches):
            number = step * pipeline.micro_batches + batch
            if ahead >= 0:
                asked, now[rank] = now[rank], max(now[rank] + _BETWEEN_NS, arrived[batch])
                recordings[rank].messages.append(("RECV", ahead, number, asked, now[rank]))
            _work(recordings[rank], now, rank, name, took_ns[rank, batch])
            if behind >= 0:  # the sender waits until its bytes are on their way
                asked, now[rank] = now[rank], now[rank] + under_way_ns
                recordings[rank].messages.append(("SEND", behind, number, asked, now[rank]))
                sent.append(now[rank])
        arrived = sent


def mean_step_ns(recordings: list[StageRecording]) -> float:
    """The job's, after the first two steps."""
    last = max(recording.steps[-1][1] for recording in recordings)
    first = max(recording.steps[1][1] for recording in recordings)
    return (last - first) / (len(recordings[0].steps) - 2)


def write_stages(pipeline: Pipeline, recordings: list[StageRecording], folder: Path) -> None:
    """A shard a rank, as tlkit.instrument() records torch.distributed."""
    folder.mkdir(parents=True, exist_ok=True)
    shift = _ORIGIN_NS + _START_NS
    for rank, recording in enumerate(recordings):
        header = ShardHeader(
            run_id="simulated",
            rank=rank,
            size=pipeline.stages,
            local_rank=rank,
            host="host-0",
            boot_id="boot-0",
            process_id=4000 + rank,
            device="cpu",
            clock=ShardClock(origin_ns=_ORIGIN_NS, origin_unix_ns=_EPOCH_NS),
            runtime="torch",
        )
        form = ShardFormat(header)
        lines = []
        for name, category, begun, end in recording.spans:
            lines.append(form.span(name, category, _COMPUTE, begun + shift, end + shift, None))
        for number, (begun, end) in enumerate(recording.steps):
            lines.append(form.span("STEP", "step", 0, begun + shift, end + shift, {"step": number}))
        for name, peer, number, asked, end in recording.messages:
            told = {"peer": peer, "tag": 0, "seq": number}
            args = {**told, "bytes": pipeline.nbytes, "process_set": 0, "algorithm": "gloo"}
            args["submitted"] = round((asked + _START_NS) / 1e3, 3)
            lines.append(form.span(name, "collective", _COMMUNICATION, asked + shift, end + shift, args))
            wait = {**told, "caller": "user", "blocking": 1}
            lines.append(form.span("SYNCHRONIZE", "other", _COMPUTE, asked + shift, end + shift, wait))
        path = folder / ("t.json" if rank == 0 else f"t.rank{rank}.json")
        head = form.head()
        path.write_text(
            "".join(["[\n", *head, *lines, form.finish(len(head) + len(lines) + 1, 0)[:-2], "\n]\n"]), encoding="utf-8"
        )
