"""The runtime of one process: started by `init`, ended by `shutdown`, asked by everything in between."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...timeline.errors import RuntimeFailure
from ...timeline.record import recorder
from ...timeline.record.shard_format import Call, ShardHeader
from . import calls, elastic_client, logs
from .addresses import own_address
from .binding import Binding, Place, ProcessGroup
from .config import Config, warn_of_ineffective
from .control.clock_sync import SAME_CLOCK, ClockFollower, ClockOffset, measure
from .control.coordinator import Coordinator
from .control.forked import Forked
from .control.leaving import SHUTDOWN_TIMEOUT_S
from .control.messages import ClockReport, Request
from .control.service import ControlPlane
from .control.tensor_table import TensorRecord, TensorTable
from .control.values import MAX_SMALL_NBYTES, sends_along
from .executor import Executor
from .kinds import Kind
from .meeting import Joined, Wanted, meet
from .meeting_places import find_place
from .rank_timeline import RankTimeline
from .shard_header import RunIdentity, shard_header
from .topology import Launched, Topology, launched_from, read_launched
from .waits import describe, describe_executed
from .work import Completions, Entry, Handle

_log = logging.getLogger("tlkit.runtime")

#: Through so many functions, two of `torch.submission` and one of the API at least, a call comes to `Engine.submit`.
_ABOVE_SUBMIT: Final = 4


class Engine:
    """Everything that runs between `init` and `shutdown`."""

    def __init__(
        self,
        binding: Binding,
        config: Config,
        launched: Launched,
        *,
        communicator: Any = None,
        wanted: Sequence[Wanted] = (),
    ) -> None:
        """Meet the other ranks and start.  Blocks until all are there.

        Args:
            communicator: mpi4py communicator whose ranks are the job, None for the ranks that the launcher has started.
            wanted: process sets to start with.

        Raises:
            RuntimeFailure: the ranks cannot meet.
            UsageError: the environment contradicts itself.
        """
        self.config = config
        self.completions = Completions()
        self._binding = binding
        mpi_job = launched.launcher in {"mpirun", "mpiexec"} or communicator is not None
        self.transports = binding.choose_transports(config, mpi_job=mpi_job)
        if "mpi" in self.transports.values() and communicator is None and launched.size > 1:
            communicator = binding.world(launched.size, launched.rank)
        self._communicator = communicator
        place = None
        if launched.size > 1:
            place = find_place(
                launched,
                config.start_timeout_s,
                communicator,
                lambda: binding.open_board(launched, config.start_timeout_s),
            )
        joined = meet(place, launched, config, wanted)
        try:
            self._begin(launched, joined)
        except BaseException:
            joined.close()
            raise

    def _begin(self, launched: Launched, joined: Joined) -> None:
        """Start the control plane, and connect what moves the bytes."""
        binding, config, welcome = self._binding, self.config, joined.welcome
        self.hosts = tuple(welcome.hosts)
        self.topology = Topology.build(launched, self.hosts, tuple(welcome.local_ranks))
        self._welcome = welcome
        self._store = joined.store
        self.seal = joined.seal
        """Marks what the ranks send each other as pickles."""
        self._opened = 0
        self._address = own_address(launched.master_address) if len(set(self.hosts)) > 1 else ""
        self.join_device: Any = "cpu"
        """Where the tensors are that this rank brings to collectives after it has joined, as the framework calls it."""
        sets = {0: tuple(range(launched.size))}
        sets |= {number: tuple(ranks) for number, ranks in enumerate(welcome.process_sets, start=1)}
        self.process_sets: dict[int, tuple[int, ...]] = sets
        """Global ranks of every process set of the job, by id."""
        self._executor = Executor(self.completions, binding, self._open_group)
        self._executor.on_abort = joined.store.give_up
        coordinator = None
        if launched.rank == 0:
            coordinator = Coordinator(
                sets,
                fusion_threshold_nbytes=config.fusion_threshold_nbytes,
                cache_capacity=config.cache_capacity,
                combine=binding.combine,
            )
        self._small_nbytes = min(config.small_tensor_nbytes, MAX_SMALL_NBYTES) if launched.size > 1 else 0
        self._clock: ClockOffset = SAME_CLOCK
        if launched.rank != 0:
            # Rank 0 answers as soon as its control thread runs; ours must not read the channel before that is done.
            channel = joined.channels[0]
            self._clock = measure(channel, same_host=joined.shares_clock, timeout_s=config.start_timeout_s)
            channel.send(ClockReport(self._clock.offset_ns))
        control = ControlPlane(
            rank=launched.rank,
            hosts=self.hosts,
            channels=joined.channels,
            tensor_table=TensorTable(self._make_absent),
            coordinator=coordinator,
            executor=self._executor,
            completions=self.completions,
            config=config,
            follower=ClockFollower(self._clock, time.monotonic_ns()) if self._clock.method == "min-rtt" else None,
            core=dict(enumerate(config.thread_affinity)).get(self.topology.local_rank),
        )
        self._control = control
        self.control: ControlPlane | Forked = control
        """What submits and waits."""
        self.timeline = RankTimeline(config, binding, control, self._header)
        """What is recorded of this rank."""
        control.start()
        # While the control plane serves already, which hears of ranks that are gone.
        try:
            self._executor.connect(sets)
        except RuntimeFailure as error:
            raise RuntimeFailure(control.fail_start(str(error))) from error
        except BaseException as error:
            control.fail_start(f"rank {launched.rank} was interrupted by {type(error).__name__} while it started")
            raise

    def _open_group(self, number: int, ranks: Sequence[int]) -> ProcessGroup | None:
        """Connect the ranks of a process set; None if this rank is not one of them.  Called in the same order by all ranks."""
        self._opened += 1
        self.process_sets[number] = tuple(ranks)
        if self.topology.rank not in ranks:
            return None
        hosts = tuple(self.hosts[rank] for rank in ranks)
        timeout_s = max(self.config.gloo_timeout_s, 1.0)
        place = Place(
            store=self._binding.part_of_store(self._store, f"set/{self._opened}", timeout_s),
            ranks=tuple(ranks),
            rank=list(ranks).index(self.topology.rank),
            number=self._opened,
            timeout_s=timeout_s,
            interface=self.config.gloo_interface,
            address=self._address,
            loopback=len(set(self.hosts)) == 1,
            one_host=len(set(hosts)) == 1 and not self.config.gloo_interface,
            communicator=self._communicator,
        )
        group = self._binding.connect(place, self.transports, hosts if self.config.hierarchical_allreduce else None)
        group.number = number
        return group

    def _make_absent(self, request: Request) -> Entry:
        """What this rank brings to a collective after it has joined: values that change nothing."""
        tensor = self._binding.absent(request, self.join_device)
        handle = Handle(lambda _: None)
        handle.remaining = 1
        entry = Entry(request, tensor, tensor, handle, recorder.now_ns())
        self._binding.mark_absent(entry)
        return entry

    def leave_in_child(self) -> None:
        """This process is a copy of the rank: it may ask for ranks and sizes, and for nothing that takes the others."""
        rank = self.topology.rank
        self._control.leave_in_child()
        self._store.leave_in_child()
        self.control = Forked(
            self._control.tensor_table,
            f"process {os.getpid()} was forked from rank {rank} (process {os.getppid()}) and is no rank itself: call collective "
            "operations in the rank, or start the process with the spawn method and give it a rank of its own.",
        )

    @property
    def is_forked(self) -> bool:
        """Whether this process is a copy of the one that has called `init`."""
        return isinstance(self.control, Forked)

    def warn_if_forked(self) -> None:
        """Say in a process that is a copy of the one that has called `init` that to call it again changes nothing."""
        if isinstance(self.control, Forked):
            _log.warning("hvd.init() has no effect here: %s", self.control.why)

    def refuse_if_forked(self) -> None:
        """Raise in a process that is a copy of the one that has called `init`.

        Raises:
            HorovodInternalError: this is one.
        """
        if isinstance(self.control, Forked):
            self.control.submit()

    # Operations.

    def submit(
        self, entries: list[Entry], *, waits: bool = False, hurry: bool = False, call: Call | None = None
    ) -> None:
        """Hand tensors of one handle to the runtime, all or none.

        Args:
            waits: whether the caller waits for them at once.
            hurry: whether they are said without waiting for others to come along.
            call: who asks; None for whoever is found on the stack.

        Raises:
            ValueError: a tensor of the same name is in flight.
            HorovodInternalError: the runtime has been shut down.
        """
        handle = entries[0].handle
        if recorder.keeps_tensors():
            handle.flow = recorder.in_compute_span()
            handle.call = calls.current(blocking=waits, above=_ABOVE_SUBMIT) if call is None else call
        if entries[0].request.device != "cpu" or (len(entries) > 1 and entries[0].together is None):
            self._binding.mark_produced(entries)
        # Asynchronous reductions are fused, which a transport does better; broadcasts never are.
        if waits or entries[0].request.kind is Kind.BROADCAST:
            self._take_values(entries)
        handle.entries = entries
        handle.remaining = len(entries)
        self.control.submit(entries, waits=waits, hurry=hurry)

    def submit_again(self, record: TensorRecord, entry: Entry) -> None:
        """Hand over a tensor in host memory that is asked for as the last time, without waiting for it: `submit` in fewer steps.

        Raises:
            ValueError: it is in flight.
            HorovodInternalError: the runtime has been shut down.
        """
        handle = entry.handle
        if recorder.keeps_tensors():
            handle.flow = recorder.in_compute_span()
            handle.call = calls.current(blocking=False, above=_ABOVE_SUBMIT - 1)
        handle.entries = (entry,)
        handle.remaining = 1
        self.control.submit_again(record, entry)

    def _take_values(self, entries: Sequence[Entry]) -> None:
        if sum([entry.tensor.nbytes for entry in entries]) > self._small_nbytes or not self._small_nbytes:
            return
        for entry in entries:
            if sends_along(entry.request, self.topology.rank):
                entry.values = self._binding.to_bytes(entry.tensor)

    def wait(self, handles: Sequence[Handle]) -> None:
        """Block until all `handles` are done.  Errors stay in the handles."""
        waiting = [handle for handle in handles if handle.remaining]
        if not waiting:
            return
        wait = recorder.begin_wait(describe(waiting))
        try:
            for handle in waiting:
                if handle.remaining:
                    self.control.wait(handle)
        finally:
            recorder.end_wait(wait, describe_executed(waiting))

    def change_settings(self, *, fusion_threshold_nbytes: int, cycle_time_s: float) -> None:
        """Let other values hold from now on; every rank calls it.

        Args:
            fusion_threshold_nbytes: rank 0 fuses by it; buckets of gradients that are laid out already stay as they are.
            cycle_time_s: of this rank.
        """
        self._control.node.change_settings(fusion_threshold_nbytes, cycle_time_s)

    def _header(self) -> ShardHeader:
        topology, welcome = self.topology, self._welcome
        return shard_header(
            RunIdentity(welcome.run_id, welcome.origin_ns, welcome.origin_unix_ns),
            rank=topology.rank,
            size=topology.size,
            local_rank=topology.local_rank,
            clock=self._clock,
            device=self._binding.device,
            versions=self._binding.versions,
        )

    def shutdown(self) -> None:
        """End the runtime of the whole job; in a forked process of nothing."""
        if self.is_forked:
            return
        try:
            ended = self._control.shut_down() and not self._control.aborted
            if not ended:
                # A collective may wait for a rank that is gone.
                self._close_groups(together=False)
            ended = self._executor.join(SHUTDOWN_TIMEOUT_S) and ended
            if ended:
                self._close_groups(together=True)
        finally:
            self.timeline.stop(self._control.tensor_table.closed or "" if self._control.aborted else "")
            recorder.stop_nvtx()
            self._executor.groups.clear()
            self._store.close()

    def _close_groups(self, *, together: bool) -> None:
        for _, group in sorted(self._executor.groups.items()):
            try:
                group.close() if together else group.abort()
            except RuntimeError as error:
                _log.debug("process set %d did not close cleanly: %s", group.number, error)


# A signal handler may shut down what it has interrupted.
_lock = threading.RLock()
_engine: Engine | None = None
_generations = 0


def start(
    binding: Callable[[], Binding],
    config: Config | None = None,
    *,
    communicator: Any = None,
    wanted: Sequence[Wanted] = (),
) -> Engine:
    """Start this process's engine, or return the one that runs (see `Engine`).

    Args:
        binding: makes what an engine knows of the framework.
    """
    global _engine, _generations  # noqa: PLW0603  one runtime a process
    with _lock:
        if _engine is not None:
            _engine.refuse_if_forked()
            return _engine
        if elastic_client.is_elastic():
            elastic_client.check_in()
        launched = read_launched() if communicator is None else launched_from(communicator)
        logs.set_up(launched.rank, os.environ)
        config = Config.from_environment() if config is None else config
        if launched.rank == 0:
            warn_of_ineffective()
        bound = binding()
        engine = Engine(bound, config, launched, communicator=communicator, wanted=wanted)
        _generations += 1
        _engine = engine
        atexit.register(stop)
        meeting = elastic_client.meeting_round()
        recorder.start_nvtx()
        engine.timeline.begin(_generations - 1 if meeting is None else meeting - 1)
        if config.timeline is not None or recorder.is_on():
            bound.instrument_framework()
        return engine


def stop() -> None:
    """End this process's engine.  Nothing to do if none runs."""
    global _engine
    with _lock:
        engine, _engine = _engine, None
        if engine is not None:
            atexit.unregister(stop)
            engine.shutdown()


def current() -> Engine | None:
    """The engine of this process, None before `init` and after `shutdown`."""
    return _engine


def _leave_in_child() -> None:
    """After a fork: the other threads of the parent, and what they held, are not here."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    if _engine is not None and not _engine.is_forked:
        _engine.leave_in_child()


os.register_at_fork(after_in_child=_leave_in_child)
