"""Ranks with a GPU: the host launches, a stream of compute and one of communication work it off.

The host runs ahead of its device until it asks for a number or waits for an earlier step.  Collectives are kernels of the stream
of communication: they begin when their bucket is ready on this rank, and end when all ranks' have begun and the bytes are moved.
"""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .clock import Clock, Process, Signal
from .jobs import Device
from .network import Network, bucket_ends
from .plan import Plan
from .recording import RankRecording, Span
from .training import COMPUTE, Rank

#: From the launch on the host to the start of a kernel on an idle device, and what it takes to learn that a stream is through.
_LATENCY_NS: Final = 4_000
_SYNC_NS: Final = 8_000
#: Between two kernels of a stream.
_GAP_NS: Final = 800
COMPUTE_STREAM, COMMUNICATION_STREAM = 7, 20
FORWARD, BACKWARD, OPTIMIZER, COPY, NCCL = "forward", "backward", "optimizer", "copy", "nccl"


class Launch(NamedTuple):
    """Work for a stream."""

    name: str
    kind: str
    begun_ns: int
    """When the host began with the operator."""
    launched_ns: int
    step: int
    duration_ns: int = 0
    nbytes: int = 0


class Kernel(NamedTuple):
    """What a device did."""

    launch: Launch
    stream: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class DeviceRecording(RankRecording):
    """One rank's, with its device."""

    kernels: list[Kernel] = field(default_factory=list)
    waits: list[tuple[str, int, int]] = field(default_factory=list)
    """Calls of the CUDA runtime that wait: name, start and end (ns)."""


class Group:
    """The collectives of all ranks' devices, in the same order on each."""

    def __init__(self, clock: Clock, plan: Plan) -> None:
        self._clock, self._plan = clock, plan
        self._joined: dict[int, int] = {}
        self._ends: dict[int, Signal] = {}

    def join(self, number: int, step: int, nbytes: int) -> Signal:
        """A rank's kernel begins; given when all have and the bytes are moved."""
        job = self._plan.job
        signal = self._ends.setdefault(number, Signal())
        self._joined[number] = self._joined.get(number, 0) + 1
        if self._joined[number] == job.ranks:
            factor = self._plan.wire[step, number % self._plan.wire.shape[1]]
            duration_ns = int((job.latency_ns + job.wire_ns(nbytes)) * factor)
            self._clock.call_at(self._clock.now_ns + duration_ns, self._clock.give, signal)
        return signal


class Stream:
    """A stream of a device."""

    def __init__(self, clock: Clock, number: int, group: Group, recording: DeviceRecording) -> None:
        self._clock, self._number, self._group, self._recording = clock, number, group, recording
        self._queue: deque[Launch | Signal | tuple[Signal]] = deque()
        self._work = Signal()
        self._collectives = 0
        clock.start(self._run())

    def put(self, launch: Launch) -> None:
        """A kernel, a copy or a collective."""
        self._queue.append(launch)
        self._wake()

    def wait_for(self, signal: Signal) -> None:
        """What comes later does not begin before."""
        self._queue.append(signal)
        self._wake()

    def record(self) -> Signal:
        """Given when the stream is through with all it has so far."""
        signal = Signal()
        self._queue.append((signal,))
        self._wake()
        return signal

    def _wake(self) -> None:
        if not self._work.given:
            self._clock.give(self._work)

    def _run(self) -> Process:
        while True:
            if not self._queue:
                self._work = Signal()
                yield self._work
                continue
            item = self._queue.popleft()
            if isinstance(item, Signal):
                yield item
            elif isinstance(item, Launch):
                yield from self._execute(item)
            else:
                self._clock.give(item[0])

    def _execute(self, launch: Launch) -> Process:
        yield max(self._clock.now_ns + _GAP_NS, launch.launched_ns + _LATENCY_NS)
        start_ns = self._clock.now_ns
        if launch.kind == NCCL:
            self._collectives += 1
            yield self._group.join(self._collectives - 1, launch.step, launch.nbytes)
        else:
            yield start_ns + launch.duration_ns
        self._recording.kernels.append(Kernel(launch, self._number, start_ns, self._clock.now_ns))


class DeviceRank(Rank):
    """A rank whose model is on a device."""

    def __init__(
        self, clock: Clock, plan: Plan, network: Network, rank: int, recording: DeviceRecording, group: Group
    ) -> None:
        super().__init__(clock, plan, network, rank, recording)
        assert plan.job.device is not None
        self._device: Device = plan.job.device
        self._waits = recording.waits
        self._compute = Stream(clock, COMPUTE_STREAM, group, recording)
        self._communication = Stream(clock, COMMUNICATION_STREAM, group, recording)
        self._ends = bucket_ends(plan.job)
        self._step_ends: list[Signal] = []

    def train(self) -> Process:
        """All steps; the host's."""
        for step in range(self.job.steps):
            begun_ns = self.clock.now_ns
            if step:
                yield from self._after_step(step - 1)
            yield from self._load(step)
            yield from self._copy(step)
            yield from self._forward(step)
            yield from self._backward(step)
            yield from self._optimize(step)
            yield from self._end(step)
            self._add(Span("STEP", "step", 0, begun_ns, self.clock.now_ns, {"step": step}))
            self.recording.steps.append((begun_ns, self.clock.now_ns))

    def _launch(self, name: str, kind: str, step: int, duration_ns: float, nbytes: int = 0) -> Process:
        begun_ns = self.clock.now_ns
        yield begun_ns + int(self._device.launch_ns * (1 + self.starved[step]))
        stream = self._communication if kind == NCCL else self._compute
        stream.put(Launch(name, kind, begun_ns, self.clock.now_ns, step, int(duration_ns), nbytes))

    def _wait(self, call: str, signal: Signal) -> Generator[int | Signal, None, None]:
        """The host waits for its device."""
        begun_ns = self.clock.now_ns
        yield signal
        yield self.clock.now_ns + _SYNC_NS
        self._waits.append((call, begun_ns, self.clock.now_ns))

    def _copy(self, step: int) -> Process:
        """The batch goes to the device."""
        device = self._device
        source = "Pinned" if device.is_pinned else "Pageable"
        duration_ns = device.copy_nbytes / device.copy_bytes_per_ns
        yield from self._launch(f"Memcpy HtoD ({source} -> Device)", COPY, step, duration_ns, device.copy_nbytes)
        if not device.is_pinned:
            yield from self._wait("cudaMemcpyAsync", self._compute.record())

    def _forward(self, step: int) -> Process:
        begun_ns = self.clock.now_ns
        whole_ns = self.busy["forward"][step]
        every = max(1, len(self.job.layers) // self._device.syncs) if self._device.syncs else 0
        for number, layer in enumerate(self.job.layers):
            yield from self._launch("ampere_sgemm_128x64_tn", FORWARD, step, whole_ns * layer.share)
            if every and number % every == every - 1:
                yield from self._item(step)
        self._add(Span("FORWARD", "forward", COMPUTE, begun_ns, self.clock.now_ns))

    def _item(self, step: int) -> Process:
        """One number comes back."""
        yield from self._launch("Memcpy DtoH (Device -> Pageable)", COPY, step, 1_500, 4)
        yield from self._wait("cudaStreamSynchronize", self._compute.record())

    def _backward(self, step: int) -> Process:
        begun_ns = self.clock.now_ns
        whole_ns, bucket = self.busy["backward"][step], 0
        for layer in reversed(self.job.layers):
            for name in ("ampere_sgemm_64x64_nn", "ampere_sgemm_64x32_nt"):
                yield from self._launch(name, BACKWARD, step, whole_ns * layer.share / 2)
            bucket += layer.nbytes
            if f"allreduce.{layer.name}" in self._ends and self.job.ranks > 1:
                self._communication.wait_for(self._compute.record())
                yield from self._launch(_kernel_of(self._device.dtype), NCCL, step, 0, bucket)
                bucket = 0
        self._compute.wait_for(self._communication.record())
        self._add(Span("BACKWARD", "backward", COMPUTE, begun_ns, self.clock.now_ns))

    def _optimize(self, step: int) -> Process:
        begun_ns = self.clock.now_ns
        name = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<3> >(int)"
        yield from self._launch(name, OPTIMIZER, step, self.busy["optimizer"][step])
        self._add(Span("OPTIMIZER_STEP", "optimizer", COMPUTE, begun_ns, self.clock.now_ns))

    def _end(self, step: int) -> Process:
        if self._device.ends_with_item:
            yield from self._item(step)
            return
        self._step_ends.append(self._compute.record())
        if step:
            yield from self._wait("cudaEventSynchronize", self._step_ends[step - 1])


def _kernel_of(dtype: str) -> str:
    short = "bf16" if dtype == "bfloat16" else "f32"
    return f"ncclDevKernel_AllReduce_Sum_{short}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def count_work(recording: DeviceRecording, first: int, last: int) -> None:
    """What the device computed in the steps from `first` to before `last`, as `worked_ns`."""
    recording.worked_ns = sum(
        kernel.end_ns - kernel.start_ns
        for kernel in recording.kernels
        if kernel.launch.kind in {FORWARD, BACKWARD, OPTIMIZER} and first <= kernel.launch.step < last
    )
