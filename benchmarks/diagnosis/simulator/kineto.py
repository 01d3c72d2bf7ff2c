"""Writes a recording as torch.profiler does: one file a rank, on clocks that nobody has aligned."""

import json
from pathlib import Path
from typing import Any, Final

from .jobs import Job
from .noise import Noise, drifts
from .plan import Plan
from .recording import Executed, RankRecording, Recording, Span

_EPOCH_NS: Final = 1_790_857_026_000_000_000
_START_NS: Final = 4_457_735_946_294_626
#: How far the wall clocks of two hosts are apart at most.
_CLOCKS_APART_NS: Final = 20_000_000
_COMMUNICATION_THREAD: Final = 90_000


class Events:
    """The events of one file."""

    def __init__(self, pid: int, clock: tuple[int, float]) -> None:
        """Events of a process, on its host's clock: how far it is off, and how much faster it runs."""
        self.pid, (self._shift_ns, self._drift) = pid, clock
        self.lines: list[str] = []

    def span(
        self, category: str, name: str, tid: int | str, start_ns: float, end_ns: float, args: dict[str, Any] | None = None,
        pid: int | None = None,
    ) -> None:  # fmt: skip
        """A complete event; args get the number that Kineto gives each."""
        start, end = (int(at_ns) + self._shift_ns + round(at_ns * self._drift) for at_ns in (start_ns, end_ns))
        dur = max(0, end - start)
        number = len(self.lines) + 1
        described = json.dumps({"External id": number, **(args or {})})
        process = self.pid if pid is None else pid
        times = f'"ts":{start // 1000}.{start % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d}'
        self.lines.append(
            f'{{"ph":"X","cat":"{category}","name":{json.dumps(name)},"pid":{process},"tid":{json.dumps(tid)},{times},'
            f'"args":{described}}}'
        )


def write_file(path: Path, events: Events, rank: int, job: Job, backend: str) -> None:
    """The file around the events."""
    group = {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": backend,
        "pg_size": job.ranks,
        "ranks": [*range(job.ranks)],
    }
    devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}] if backend == "nccl" else []
    header = {
        "schemaVersion": 1,
        "deviceProperties": devices,
        "distributedInfo": {
            "backend": backend,
            "rank": rank,
            "world_size": job.ranks,
            "pg_count": 1,
            "pg_config": [group],
        },
    }
    if job.ranks == 1:
        del header["distributedInfo"]
    footer = f'"displayTimeUnit": "ms",\n"baseTimeNanoseconds": {_EPOCH_NS},\n"traceName": "{path.name}"'
    body = ",\n".join(events.lines)
    path.write_text(f'{json.dumps(header)[:-1]},\n"traceEvents": [\n{body}\n],\n{footer}\n}}\n', encoding="utf-8")


def clocks(job: Job, noise: Noise) -> list[tuple[int, float]]:
    """How far each rank's clock is off (ns), and how much faster than the first host's it runs."""
    hosts = -(-job.ranks // job.ranks_per_host)
    drawn = noise.generator("wall clocks").integers(-_CLOCKS_APART_NS, _CLOCKS_APART_NS, hosts).tolist()
    apart = [0.0, *drifts(noise, hosts - 1)]
    return [
        (_START_NS + drawn[rank // job.ranks_per_host], apart[rank // job.ranks_per_host]) for rank in range(job.ranks)
    ]


def write_kineto(recording: Recording, plan: Plan, folder: Path) -> None:
    """Files of a job on CPUs in `folder`."""
    job = plan.job
    folder.mkdir(parents=True, exist_ok=True)
    for rank, (recorded, clock) in enumerate(zip(recording.ranks, clocks(job, plan.noise), strict=True)):
        events = Events(11_000 + rank, clock)
        _RankFile(events, plan, rank, recorded).write()
        write_file(folder / f"rank{rank}.pt.trace.json", events, rank, job, "gloo")


class _RankFile:
    """What torch.profiler sees of one rank: its operators, not what the training thread waits for."""

    def __init__(self, events: Events, plan: Plan, rank: int, recorded: RankRecording) -> None:
        self.events, self.plan, self.job, self.rank, self.recorded = events, plan, plan.job, rank, recorded
        self.main = events.pid
        self._step = 0

    def write(self) -> None:
        """All events."""
        for span in self.recorded.spans:
            if span.name == "DATA_WAIT":
                kind = "_MultiProcessingDataLoaderIter" if self.job.workers else "_SingleProcessDataLoaderIter"
                self._annotate(f"enumerate(DataLoader)#{kind}.__next__", span.start_ns, span.end_ns)
            elif span.name == "FORWARD":
                self._forward(span)
            elif span.name == "BACKWARD":
                self._backward(span)
            elif span.name == "OPTIMIZER_STEP":
                self._annotate("Optimizer.step#SGD.step", span.start_ns, span.end_ns)
                self.events.span("cpu_op", "aten::_foreach_add_", self.main, span.start_ns + 2_000, span.end_ns - 1_000)
            elif span.name == "STEP":
                self._annotate(f"ProfilerStep#{self._step}", span.start_ns, span.end_ns)
                self._step += 1
        for executed in self.recorded.executed:
            self._collective(executed)

    def _annotate(self, name: str, start_ns: int, end_ns: int) -> None:
        self.events.span("user_annotation", name, self.main, start_ns, end_ns)

    def _forward(self, span: Span) -> None:
        if (span.args or {}).get("training") is False:  # validation calls the model without DistributedDataParallel
            self.events.span("cpu_op", "aten::linear", self.main, span.start_ns, span.end_ns)
            return
        self._annotate("DistributedDataParallel.forward", span.start_ns, span.end_ns)
        # What blocks is no operator: nothing is on the thread then.
        at = span.start_ns + self.plan.blocked["forward"][self.rank, self._step]
        whole = span.end_ns - at
        for layer in self.job.layers:
            until = at + whole * layer.share
            self.events.span("cpu_op", "aten::linear", self.main, at + 500, until - 500)
            at = until

    def _backward(self, span: Span) -> None:
        at = span.start_ns + self.plan.blocked["backward"][self.rank, self._step]
        whole = span.end_ns - at
        for layer in reversed(self.job.layers):
            until = at + whole * layer.share
            node = "autograd::engine::evaluate_function: AddmmBackward0"
            self.events.span("cpu_op", node, self.main, at + 300, until)
            self.events.span("cpu_op", "aten::mm", self.main, at + 600, until - 3_000)
            at = until

    def _collective(self, executed: Executed) -> None:
        asked_ns = max(carried.submitted_ns for carried in executed.carried)
        name = {"allreduce": "all_reduce", "broadcast": "broadcast", "barrier": "barrier"}[executed.kind]
        self.events.span("cpu_op", f"c10d::{executed.kind}_", self.main, asked_ns - 2_500, asked_ns - 500)
        self.events.span("user_annotation", f"gloo:{name}", _COMMUNICATION_THREAD, executed.start_ns, executed.end_ns)
