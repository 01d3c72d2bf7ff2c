"""The training thread of a rank, and its loader's workers."""

from typing import Final

from .clock import Clock, Process
from .network import Network
from .plan import Plan
from .recording import RankRecording, Span, Tensor

COMPUTE, DATA, WORKER = 1, 2, 10

#: Batches that a worker is asked for ahead of time, as in torch's DataLoader.
PREFETCH: Final = 2
#: What handing over a batch that is ready takes at most, and as a share of the step's work.
_HAND_OVER_NS: Final = 120_000
_HAND_OVER_SHARE: Final = 0.003
#: Python between two spans.
_BETWEEN_NS: Final = 5_000
_VALIDATION_BATCHES: Final = 4


class Rank:
    """One rank's life."""

    def __init__(self, clock: Clock, plan: Plan, network: Network, rank: int, recording: RankRecording) -> None:
        self.clock, self.job, self.network, self.rank, self.recording = clock, plan.job, network, rank, recording
        self.busy = {item: amounts[rank].tolist() for item, amounts in plan.busy.items()}
        self.blocked = {item: amounts[rank].tolist() for item, amounts in plan.blocked.items()}
        self.starved = plan.starved[rank].tolist()
        self.elements = plan.elements[rank].tolist()
        self.is_steady = False
        self._ready_ns: dict[int, int] = {}
        self._free_ns: list[int] = []
        part = network.part_of(rank) if plan.job.parts else 0
        self._gradients = [
            (f"allreduce.{layer.name}", layer.nbytes, part if layer.is_partial else 0, layer.share)
            for layer in reversed(plan.job.layers)
        ]

    def train(self) -> Process:
        """All steps."""
        for step in range(self.job.steps):
            self.is_steady = step >= self.job.warm_up
            begun_ns = self.clock.now_ns
            if step:
                yield from self._after_step(step - 1)
            yield from self._load(step)
            yield from self._forward(step)
            yield from self._backward(step)
            yield from self._synchronize()
            yield from self._work("optimizer", step, "OPTIMIZER_STEP", "optimizer", {"optimizer": "SGD"})
            now_ns = self.clock.now_ns
            self._add(Span("STEP", "step", 0, begun_ns, now_ns, {"step": step}))
            self.recording.steps.append((begun_ns, now_ns))

    def _add(self, span: Span) -> None:
        self.recording.spans.append(span)

    def _amounts(self, item: str, step: int) -> tuple[int, int, int]:
        """On a core, starved of one, blocked (ns)."""
        busy_ns = int(self.busy[item][step])
        return busy_ns, int(busy_ns * self.starved[step]), int(self.blocked[item][step])

    def _worked(self, amount_ns: int) -> None:
        if self.is_steady:
            self.recording.worked_ns += amount_ns

    def _count(self, category: str, busy_ns: int, starved_ns: int) -> None:
        """The counters that tell of the span that ends now."""
        now_ns = self.clock.now_ns
        self.recording.counters.append((f"{category} cpu_ns", now_ns, busy_ns))
        self.recording.counters.append((f"{category} starved_ns", now_ns, starved_ns))

    def _work(self, item: str, step: int, name: str, category: str, args: dict[str, object] | None) -> Process:
        """One span in which the training thread does something."""
        begun_ns = self.clock.now_ns
        amounts = self._amounts(item, step)
        self._worked(sum(amounts))
        yield begun_ns + sum(amounts)
        self._add(Span(name, category, COMPUTE, begun_ns, self.clock.now_ns, args))
        if category != "checkpoint":
            self._count(category, amounts[0], amounts[1])

    # Between steps.

    def _after_step(self, step: int) -> Process:
        """What the loop does after the optimizer: metrics, validation, checkpoints, whatever else."""
        for call in self.job.calls:
            if (step + 1) % call.every == 0:
                for name in call.names:
                    nbytes = 8 if name.endswith(".sz") else call.nbytes
                    tensor = Tensor(f"{call.kind}.{name}", call.kind, nbytes, 0, step, is_gradient=False)
                    self.network.submit(self.rank, tensor)
                    yield from self._synchronize()
        if sum(self._amounts("checkpoint", step)) > 0:
            yield from self._work("checkpoint", step, "CHECKPOINT", "checkpoint", None)
        yield from self._validate(step)
        amounts = self._amounts("loop", step)
        self._worked(sum(amounts))
        yield self.clock.now_ns + sum(amounts)

    def _validate(self, step: int) -> Process:
        amounts = [amount // _VALIDATION_BATCHES for amount in self._amounts("validation", step)]
        if not sum(amounts):
            return
        for _ in range(_VALIDATION_BATCHES):
            begun_ns = self.clock.now_ns
            self._worked(sum(amounts))
            yield begun_ns + sum(amounts)
            self._add(
                Span("FORWARD", "forward", COMPUTE, begun_ns, self.clock.now_ns, {"module": "Net", "training": False})
            )
            self._count("forward", amounts[0], amounts[1])
            yield self.clock.now_ns + _BETWEEN_NS

    # Data.

    def _load(self, step: int) -> Process:
        if self.job.workers:
            yield from self._start_workers(step)
        begun_ns = self.clock.now_ns
        if not self.job.workers:
            busy_ns, starved_ns = 0, 0
            spans = []
            for item, name in (("dataset", "DATASET"), ("collate", "COLLATE")):
                part_ns = self.clock.now_ns
                amounts = self._amounts(item, step)
                yield part_ns + sum(amounts)
                busy_ns, starved_ns = busy_ns + amounts[0], starved_ns + amounts[1]
                spans.append(Span(name, "data", DATA, part_ns, self.clock.now_ns))
            fetched = Span("DATA_FETCH", "data", DATA, begun_ns, self.clock.now_ns, {"worker": -1, "batch": step})
            self.recording.spans += [*spans, fetched]
            yield self.clock.now_ns + _BETWEEN_NS
        else:
            hand_over_ns = int(min(_HAND_OVER_NS, self.job.work_ns * _HAND_OVER_SHARE))
            yield max(self._ready_ns.pop(step), self.clock.now_ns) + hand_over_ns
            self._ask_for(step + PREFETCH * self.job.workers)
            busy_ns, starved_ns = hand_over_ns // 2, 0
        args = {"workers": self.job.workers}
        self._add(Span("DATA_WAIT", "data", DATA, begun_ns, self.clock.now_ns, args))
        self._count("data", busy_ns, starved_ns)
        if self.is_steady:
            self.recording.waited_for_data_ns += self.clock.now_ns - begun_ns
        yield self.clock.now_ns + _BETWEEN_NS

    def _start_workers(self, step: int) -> Process:
        """At the beginning of an epoch: a new iterator, and new workers unless they stay."""
        if step % self.job.epoch_steps:
            return
        if step == 0 or not self.job.persistent:
            begun_ns = self.clock.now_ns
            yield begun_ns + self.job.spawn_ns * self.job.workers
            args = {"workers": self.job.workers}
            self._add(Span("WORKER_START", "data", DATA, begun_ns, self.clock.now_ns, args))
        self._free_ns = [self.clock.now_ns] * self.job.workers
        for ahead in range(PREFETCH * self.job.workers):
            self._ask_for(step + ahead)

    def _ask_for(self, batch: int) -> None:
        """A worker makes this batch as soon as it has made those before."""
        first = batch - batch % self.job.epoch_steps
        is_of_next_epoch = batch >= self.job.steps or first > len(self.recording.steps)
        if is_of_next_epoch or batch in self._ready_ns:
            return
        worker = (batch - first) % self.job.workers
        begun_ns = max(self._free_ns[worker], self.clock.now_ns)
        at_ns = begun_ns
        for item, name in (("dataset", "DATASET"), ("collate", "COLLATE")):
            amounts = int(self.busy[item][batch]), int(self.blocked[item][batch])
            self._add(Span(name, "data", WORKER + worker, at_ns, at_ns + sum(amounts)))
            at_ns += sum(amounts)
        self._add(Span("DATA_FETCH", "data", WORKER + worker, begun_ns, at_ns, {"worker": worker, "batch": batch}))
        self._free_ns[worker] = self._ready_ns[batch] = at_ns

    # The model.

    def _forward(self, step: int) -> Process:
        self.recording.counters.append(("input elements", self.clock.now_ns, self.elements[step]))
        begun_ns = self.clock.now_ns
        amounts, garbage = self._amounts("forward", step), self._amounts("garbage", step)
        if sum(garbage):
            yield begun_ns + sum(amounts) // 2
            pause_ns = self.clock.now_ns
            yield pause_ns + sum(garbage)
            collected = {"generation": 2, "collected": 0}
            self._add(Span("GARBAGE_COLLECTION", "other", COMPUTE, pause_ns, self.clock.now_ns, collected))
        self._worked(sum(amounts) + sum(garbage))
        yield begun_ns + sum(amounts) + sum(garbage)
        self._add(Span("FORWARD", "forward", COMPUTE, begun_ns, self.clock.now_ns, {"module": "Net"}))
        self._count("forward", amounts[0] + garbage[0], amounts[1] + garbage[1])
        yield self.clock.now_ns + _BETWEEN_NS

    def _backward(self, step: int) -> Process:
        """Gradients become ready one after the other, from the output to the input."""
        begun_ns = self.clock.now_ns
        busy_ns, starved_ns, blocked_ns = self._amounts("backward", step)
        self._worked(busy_ns + starved_ns + blocked_ns)
        share = 0.0
        if self.job.overlaps:
            for name, nbytes, process_set, part in self._gradients:
                share += part
                yield begun_ns + blocked_ns + int((busy_ns + starved_ns) * share)
                self.network.submit(self.rank, Tensor(name, "allreduce", nbytes, process_set, step))
        yield begun_ns + busy_ns + starved_ns + blocked_ns
        self._add(Span("BACKWARD", "backward", COMPUTE, begun_ns, self.clock.now_ns))
        self._count("backward", busy_ns, starved_ns)
        if not self.job.overlaps:
            for name, nbytes, process_set, _ in self._gradients:
                self.network.submit(self.rank, Tensor(name, "allreduce", nbytes, process_set, step))
        yield self.clock.now_ns + _BETWEEN_NS

    def _synchronize(self) -> Process:
        """Blocked until all that was submitted is done."""
        begun_ns = self.clock.now_ns
        yield self.network.drained(self.rank)
        self._add(Span("SYNCHRONIZE", "other", COMPUTE, begun_ns, self.clock.now_ns))
        yield self.clock.now_ns + _BETWEEN_NS
