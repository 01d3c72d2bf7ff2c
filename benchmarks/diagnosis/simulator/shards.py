"""Writes a recording as our runtime writes it: a shard a rank (docs/timeline-format.md)."""

from pathlib import Path
from typing import Final, NamedTuple

from tlkit.timeline.record.shard_format import ShardClock, ShardFormat, ShardHeader, TensorLife

from .host_load import host_samples
from .jobs import Job
from .noise import Noise, drifts
from .recording import Executed, RankRecording, Recording

COMMUNICATION: Final = 3
_EPOCH_NS: Final = 1_790_000_000_000_000_000
_ORIGIN_NS: Final = 58_858_000_395_956
#: What happens before the first step: imports, the first broadcast.
_START_NS: Final = 1_500_000_000

_OPERATIONS: Final = {"allreduce": "GLOO_ALLREDUCE", "broadcast": "GLOO_BCAST", "barrier": "GLOO_BARRIER"}


#: The runtime measures offsets again so often, and at the end.
_MEASURED_EVERY_NS: Final = 60_000_000_000


class _RankClock(NamedTuple):
    """What a rank's clock shows, on the axis of its shard's times."""

    shift_ns: int
    drift: float
    """How much faster than rank 0's it runs: 1e-5 is ten microseconds a second."""

    def at(self, true_ns: int) -> int:
        return true_ns + self.shift_ns + round(true_ns * self.drift)


class _HostClocks:
    """How the clocks of hosts differ, run apart, and how far their measured offsets are off; rank 0's is right."""

    def __init__(self, job: Job, noise: Noise) -> None:
        hosts = -(-job.ranks // job.ranks_per_host)
        chance = noise.generator("clocks")
        self._per_host = job.ranks_per_host
        self.offsets_ns = [0, *chance.integers(-(10**15), 10**15, hosts - 1).tolist()]
        self.errors_ns = [0, *chance.integers(-job.clock_error_ns, job.clock_error_ns + 1, hosts - 1).tolist()]
        self.uncertainty_ns = job.clock_error_ns
        self.drifts = [0.0, *drifts(noise, hosts - 1)]

    def host_of(self, rank: int) -> int:
        return rank // self._per_host

    def shard_clock(self, rank: int) -> ShardClock:
        host = self.host_of(rank)
        offset_ns = self.offsets_ns[host]
        return ShardClock(
            origin_ns=_ORIGIN_NS - offset_ns,
            origin_unix_ns=_EPOCH_NS,
            offset_ns=offset_ns,
            uncertainty_ns=self.uncertainty_ns if host else 0,
            method="min-rtt" if host else "same-host",
        )


def write_shards(recording: Recording, job: Job, noise: Noise, folder: Path) -> None:
    """One file a rank in `folder`."""
    clocks = _HostClocks(job, noise)
    folder.mkdir(parents=True, exist_ok=True)
    loads = [
        samples
        for first in range(0, job.ranks, job.ranks_per_host)
        for samples in host_samples(recording.ranks[first : first + job.ranks_per_host])
    ]
    for rank, recorded in enumerate(recording.ranks):
        host = clocks.host_of(rank)
        header = ShardHeader(
            run_id="simulated",
            rank=rank,
            size=job.ranks,
            local_rank=rank % job.ranks_per_host,
            host=f"host-{host}",
            boot_id=f"boot-{host}",
            process_id=4000 + rank,
            device="cpu",
            clock=clocks.shard_clock(rank),
            versions={"tlkit": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        )
        clock = _RankClock(header.clock.origin_ns + _START_NS + clocks.errors_ns[host], clocks.drifts[host])
        form = ShardFormat(header)
        lines = [*_lines(form, recorded, clock, job.workers), *_readings(form, recorded, clock, header.clock)]
        lines += [form.counter(name, clock.at(at_ns), value) for name, at_ns, value in loads[rank]]
        path = folder / ("t.json" if rank == 0 else f"t.rank{rank}.json")
        events = sum(text.count("\n") for text in lines) + 1
        path.write_text("".join(["[\n", *lines, ShardFormat(header).finish(events, 0)[:-2], "\n]\n"]), encoding="utf-8")


def _readings(form: ShardFormat, recorded: RankRecording, clock: _RankClock, measured: ShardClock) -> list[str]:
    """What the runtime measures of a clock that runs apart, in the course of the run."""
    if not clock.drift:
        return []
    end_ns = recorded.steps[-1][1]
    moments = [*range(_MEASURED_EVERY_NS, end_ns, _MEASURED_EVERY_NS), end_ns]
    return [
        form.clock(clock.at(at_ns), measured.offset_ns - round(at_ns * clock.drift), measured.uncertainty_ns)
        for at_ns in moments
    ]


def _lines(form: ShardFormat, recorded: RankRecording, clock: _RankClock, workers: int) -> list[str]:
    lines = form.head() + [form.worker_lane(worker) for worker in range(workers)]
    for name, category, tid, start_ns, end_ns, args in recorded.spans:
        lines.append(form.span(name, category, tid, clock.at(start_ns), clock.at(end_ns), args))
    for name, at_ns, value in recorded.counters:
        lines.append(form.counter(name, clock.at(at_ns), value))
    number = 0
    for executed in recorded.executed:
        lines += _collective(form, executed, clock, number)
        number += len(executed.carried)
    return lines


def _caller(name: str) -> dict[str, object]:
    """Who called for a tensor, as the runtime writes it down."""
    callers = {"metric": "user", "object": "object", "barrier": "barrier"}
    caller = next((callers[word] for word in name.split(".")[:2] if word in callers), None)
    if caller is None:
        return {"caller": "gradient", "blocking": 0}
    return {"caller": caller, "blocking": 1, "where": "train.py:81"}


def _collective(form: ShardFormat, executed: Executed, clock: _RankClock, number: int) -> list[str]:
    """The spans of one collective, and the lives of its tensors."""

    def axis_us(true_ns: int) -> float:  # times in args are on the axis of `ts`
        return round((clock.at(true_ns) - form.origin_ns) / 1e3, 3)

    operation = clock.at(executed.operation_ns[0]), clock.at(executed.operation_ns[1])
    start_ns, end_ns = clock.at(executed.start_ns), clock.at(executed.end_ns)
    args: dict[str, object] = {"seq": executed.seq, "process_set": executed.process_set}
    if executed.process_set:
        args["ranks"] = list(executed.ranks)
    args |= {
        "dtype": "float32",
        "bytes": sum(carried.tensor.nbytes for carried in executed.carried),
        "tensors": len(executed.carried),
        "algorithm": "gloo",
    }
    args |= _caller(executed.carried[0].tensor.name)
    if executed.kind == "allreduce":
        args["op"] = "average"
    args["submitted"] = axis_us(max(carried.submitted_ns for carried in executed.carried))
    args["negotiated"] = axis_us(executed.negotiated_ns)
    if form.pid == executed.ranks[0]:
        args["arrivals"] = [axis_us(at_ns) for at_ns in executed.arrivals_ns]
    lines = []
    if start_ns < operation[0]:
        lines.append(form.span("MEMCPY_IN_FUSION_BUFFER", "fusion", COMMUNICATION, start_ns, operation[0], None))
    lines.append(form.span(_OPERATIONS[executed.kind], "collective", COMMUNICATION, *operation, None))
    if operation[1] < end_ns:
        lines.append(form.span("MEMCPY_OUT_FUSION_BUFFER", "fusion", COMMUNICATION, operation[1], end_ns, None))
    lines.append(form.span(executed.kind.upper(), "collective", COMMUNICATION, start_ns, end_ns, args))
    lives = [
        TensorLife(
            number + position,
            carried.tensor.name,
            executed.kind,
            carried.tensor.nbytes,
            "float32",
            [carried.tensor.nbytes // 4],
            clock.at(carried.submitted_ns),
            executed.kind == "allreduce",
        )
        for position, carried in enumerate(executed.carried)
    ]
    times = clock.at(executed.negotiated_ns), start_ns, end_ns
    lines.append(form.lives(lives, executed.process_set, executed.seq, times))
    return lines
