"""`tlkit.instrument()`: the timeline of training without `hvd`: DDP, FSDP, or a loop without ranks.

The ranks agree on the run and on its clock through the store of torch.distributed; from then on everything is recorded as it
is under `hvd`, and the collectives are those of torch.distributed.
"""

import atexit
import logging
import os
import secrets
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import torch.distributed as dist

# torch.distributed hands it on without exporting it, which type checkers refuse.
from torch._C._distributed_c10d import PrefixStore

from ...timeline.errors import RuntimeFailure, TraceError, UsageError
from ...timeline.record import recorder
from ...timeline.record.flight import DEFAULT_KEEP as FLIGHT_KEEP
from ...timeline.record.flight import path_in
from ...timeline.record.sampled_format import NO_STEP, format_for
from ...timeline.record.shard_file import check_base, restart_path, shard_path
from ...timeline.record.shard_writer import ShardWriter
from .. import tuning
from ..core import engine, logs
from ..core.config import Config
from ..core.control.clock_sync import EXCHANGES, SAME_CLOCK, ClockOffset, offset_of, settle
from ..core.flight import CALL, STALL, Flight
from ..core.shard_header import RunIdentity, shard_header
from ..core.topology import boot_id, read_launched
from . import frameworks, install, late_ranks, own_device, tensorflow_cluster, torch_collectives, uninstall
from .flight_alarms import NoSteps, StoreAlarms
from .samplers import Sampler
from .steps import tracker

_log = logging.getLogger("tlkit.runtime")

_KEYS: Final = "tlkit/recording"


class _Welcome(msgspec.Struct):
    """What rank 0 tells the others."""

    run_id: str
    origin_ns: int
    origin_unix_ns: int
    boot_id: str


class Recording:
    """A recording started by `instrument`.  Ends with the process, with `stop`, or as a context manager."""

    def __init__(self, rank: int, size: int, path: Path | None, run: RunIdentity | None) -> None:
        self.rank = rank
        self.size = size
        self.path = path
        """This rank's shard; None while no timeline is written."""
        self.run = run
        self.is_flight = False
        """Whether it is the flight recorder that records."""
        self._sampler: Sampler | None = None
        self._flight: Flight | None = None
        self._alarms: StoreAlarms | None = None
        self.writer: ShardWriter | None = None

    def stop(self) -> None:
        """Finish the shard and take the instruments out.  Nothing to do the second time."""
        global _current  # noqa: PLW0603  one recording a process
        if _current is not self:
            return
        _current = None
        atexit.unregister(self.stop)
        late_ranks.forget()
        if self._sampler is not None:
            self._sampler.stop()
        if self._alarms is not None:
            self._alarms.stop()
        torch_collectives.let_calls_end()
        recorder.stop_timeline()
        if self._flight is not None:
            self._flight.finish("")
        recorder.stop_nvtx()
        uninstall()

    def set_aside(self, why: str) -> bool:
        """Have the flight recorders of all ranks set aside what they have; False if none is on.

        Args:
            why: a sentence without a full stop.
        """
        if self._alarms is not None:
            self._alarms.add(CALL, why)
        return self._alarms is not None

    def _start_flight(self, config: Config, writer: ShardWriter, store: Any) -> None:
        """Record the newest steps, and listen for alarms.

        Raises:
            TraceError: nothing can be written there.
        """
        steps = NoSteps(config.stall_warning_s)

        def check() -> None:
            said = steps.check() if config.stall_check else ""
            if said:
                alarm(STALL, f"rank {self.rank} {said}")

        def alarm(kind: str, why: str) -> None:
            if self._alarms is not None:
                self._alarms.add(kind, why)

        flight = Flight(config.flight_recorder, writer, self.rank, alarm)
        slow = writer.on_step

        def on_step(duration_ns: int) -> None:
            steps.add(duration_ns)
            if slow is not None:
                slow(duration_ns)

        writer.on_step = on_step
        self._flight, self._alarms = flight, StoreAlarms(store, flight.set_aside, check)

    def _start(self, config: Config, writer: ShardWriter | None, local_rank: int, store: Any = None) -> None:
        if writer is not None:
            if self.is_flight:
                self._start_flight(config, writer, store)
            else:
                recorder.start_timeline(writer)
            self.writer, self.path = writer, writer.path
            only_load = config.sampling == NO_STEP
            if config.sample_interval_s and (local_rank == 0 or not only_load):
                self._sampler = Sampler(config.sample_interval_s, local_rank=local_rank, only_load=only_load)
                self._sampler.start()
        install(collectives=True)
        atexit.register(self.stop)

    def __enter__(self) -> Self:
        """The recording, which runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()


_current: Recording | None = None
_recordings = 0


def current() -> Recording | None:
    """The recording that runs."""
    return _current


def instrument(timeline: str | os.PathLike[str] | None = None) -> Recording:
    """Record the training of this process: data loading, forward, backward, optimizer, steps and collectives.

    Call it on every rank, after `torch.distributed.init_process_group` or `tf.distribute.MultiWorkerMirroredStrategy()` (in a
    training of several ranks) and before the loop; TensorFlow and Keras have to be imported before.
    Without `timeline`, HOROVOD_TIMELINE says where to write; without either nothing is recorded unless a tool listens for
    NVTX ranges, and the call costs nothing, so it may stay in the script.

    Args:
        timeline: rank 0 writes here, rank r beside it, as with HOROVOD_TIMELINE.  Without either HOROVOD_FLIGHT_RECORDER may
            name a folder for the newest of each rank, which is set aside when something is wrong (docs/runtime.md).

    Returns:
        A handle that stops the recording; the end of the process does it, too.

    Raises:
        UsageError: the launcher started several ranks, and they have not met yet.
    """
    global _current  # noqa: PLW0603  one recording a process
    if _current is not None:
        return _current
    rank, size, met = _who()
    if engine.current() is not None:
        return Recording(rank, size, None, None)  # the runtime records by itself
    if size > 1 and not met:
        raise UsageError(
            f"this is one of {size} ranks, and they are not connected yet: call tlkit.instrument() after "
            "torch.distributed.init_process_group() or tf.distribute.MultiWorkerMirroredStrategy(), or hvd.init() if the script "
            "uses Horovod's API"
        )
    frameworks.note_framework()
    logs.set_up(rank, os.environ)
    tuning.begin()
    config = Config.from_environment()
    path = os.fspath(timeline) if timeline is not None else config.timeline_path
    is_flight = path is None and config.timeline is None and bool(config.flight_recorder)
    if is_flight:
        path = os.fspath(path_in(config.flight_recorder))
    recorder.start_nvtx()
    if path is None:
        recording = Recording(rank, size, None, None)
        if recorder.is_on():
            _current = recording
            recording._start(config, None, 0)  # noqa: SLF001  its maker
        return recording
    recording = Recording(rank, size, None, None)
    recording.is_flight = is_flight
    _record(recording, path, config, named=timeline is not None)
    if not met and recording.path is not None:
        late_ranks.when_met(lambda: _record_as_rank(recording, path, config, named=timeline is not None))
    return recording


def _who() -> tuple[int, int, bool]:
    """The rank of this process, how many there are, and whether they have met."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), True
    launched = read_launched()
    task = tensorflow_cluster.read_task()
    if task is not None and launched.size == 1:
        return task.rank, task.size, tensorflow_cluster.has_met()
    return launched.rank, launched.size, False


def _record(recording: Recording, path: str, config: Config, *, named: bool) -> None:
    """Record into a file; one that cannot be made is logged.

    Args:
        recording: which begins with that.
        named: whether the script named the file, and means that one; HOROVOD_TIMELINE is a name for several.

    Raises:
        RuntimeFailure: the other ranks do not call.
    """
    global _current, _recordings  # noqa: PLW0603  one recording a process
    _recordings += 1
    rank, size = recording.rank, recording.size
    run, clock = _agree(rank, size, _recordings)
    local_rank = read_launched().local_rank
    header = shard_header(
        run,
        rank=rank,
        size=size,
        local_rank=rank if local_rank is None else local_rank,
        clock=clock,
        device=own_device.kind(),
        versions=own_device.versions(),
        runtime="torch",
    )
    target = shard_path(restart_path(path, 0 if named else _times_begun()), rank)
    _current, recording.run = recording, run
    try:
        if not recording.is_flight:
            check_base(path)
        keep = config.keep or FLIGHT_KEEP if recording.is_flight else config.keep
        writer = ShardWriter(target, header, make_format=format_for(config.sampling), keep=keep)
        has_alarms = recording.is_flight and size > 1 and dist.is_initialized()
        store = _part_of_store(f"{_recordings}/flight") if has_alarms else None
        recording._start(config, writer, header.local_rank, store)  # noqa: SLF001  its maker
    except TraceError as error:  # the training goes on
        _log.error("%s", error)
        recording.path = _current = None


def _record_as_rank(alone: Recording, path: str, config: Config, *, named: bool) -> None:
    """The process that recorded as the only one turns out to be one of several ranks: they record together from here.

    What it has recorded alone is kept if there is a training step in it.
    """
    global _recordings  # noqa: PLW0603  one recording a process
    if _current is not alone or dist.get_world_size() == 1:
        return
    writer = alone.writer
    uninstall()
    alone.stop()
    if writer is not None and not tracker.steps_of(writer):
        writer.path.unlink(missing_ok=True)
        _recordings -= 1
    alone.rank, alone.size = dist.get_rank(), dist.get_world_size()
    recorder.start_nvtx()
    try:
        with late_ranks.patience():
            _record(alone, path, config, named=named)
    except RuntimeFailure as error:
        _log.error("%s; rank %d is not recorded", error, alone.rank)


def _times_begun() -> int:
    """How often this job has begun to record before: in this process, and in those that torchrun has started anew."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return _recordings - 1 + (int(restarts) if restarts.isdigit() else 0)


def _part_of_store(prefix: str) -> Any:
    """A part of the store at which all ranks have met."""
    if not dist.is_initialized():
        return tensorflow_cluster.CoordinationStore(f"{_KEYS}/{prefix}")
    default: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001  there is no public way
    return PrefixStore(f"{_KEYS}/{prefix}", default)


def _agree(rank: int, size: int, number: int) -> tuple[RunIdentity, ClockOffset]:
    """The run that all ranks record, and how far this rank's clock is from rank 0's.

    Raises:
        RuntimeFailure: the other ranks do not call.
    """
    if size == 1:
        run_id = os.environ.get("TLKIT_RUN_ID") or secrets.token_hex(8)
        return RunIdentity(run_id, time.monotonic_ns(), time.time_ns()), SAME_CLOCK
    store = _part_of_store(str(number))
    try:
        if rank == 0:
            run = RunIdentity(secrets.token_hex(8), time.monotonic_ns(), time.time_ns())
            store.set("run", msgspec.json.encode(_Welcome(*run, boot_id())).decode())
            for other in range(1, size):
                _answer(store, other)
            return run, SAME_CLOCK
        welcome = msgspec.json.decode(store.get("run"), type=_Welcome)
        clock = _measure(store, rank, same_host=boot_id() == welcome.boot_id != "")
        return RunIdentity(welcome.run_id, welcome.origin_ns, welcome.origin_unix_ns), clock
    except RuntimeError as error:  # torch's DistStoreError is one
        raise RuntimeFailure(
            f"the ranks could not connect to record ({str(error).splitlines()[0]}): tlkit.instrument() has to be called on "
            "every rank"
        ) from error


def _answer(store: Any, other: int) -> None:
    """Tell a rank the time, as often as it asks."""
    for number in range(EXCHANGES):
        store.get(f"ask/{other}/{number}")
        store.set(f"tell/{other}/{number}", str(time.monotonic_ns()))


def _measure(store: Any, rank: int, *, same_host: bool) -> ClockOffset:
    measured = []
    for number in range(EXCHANGES):
        sent_ns = time.monotonic_ns()
        store.set(f"ask/{rank}/{number}", "")
        told = int(store.get(f"tell/{rank}/{number}"))
        measured.append(offset_of(sent_ns, told, time.monotonic_ns()))
    # The first exchange waits for the ranks before this one, and is the worst.
    return settle(min(measured, key=lambda offset: offset.uncertainty_ns), same_host=same_host)
