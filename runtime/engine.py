"""The runtime of one process: started by `init`, ended by `shutdown`, asked by everything in between."""

import atexit
import logging
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from .. import __version__
from ..timeline import recorder
from ..timeline.errors import RuntimeFailure, TraceError
from ..timeline.shard_format import ShardClock, ShardHeader, TensorLife
from ..timeline.shard_writer import ShardWriter, shard_path
from ..timeline.vocabulary import SYNCHRONIZE, Category
from . import instrument, logs
from .config import Config
from .control.channel import Channel, accept_ranks, connect, listen
from .control.clock_sync import ClockOffset, measure
from .control.coordinator import Coordinator
from .control.messages import ClockOffset as ClockOffsetMessage
from .control.messages import Hello, Request, Welcome
from .control.service import ControlThread
from .errors import HorovodInternalError
from .executor import Executor, Member
from .rendezvous import LOOPBACK, open_store, remove_job_file
from .topology import Launched, Topology, boot_id, host_name, read_launched
from .transports import Transport, choose_transport
from .work import Completions, Entry, Handle

_log = logging.getLogger("tlkit.runtime")

#: How long a shutdown waits for the other ranks.
SHUTDOWN_TIMEOUT_S: Final = 10.0

_SAME_CLOCK = ClockOffset(offset_ns=0, uncertainty_ns=0, method="same-host")


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """What a rank knows after it has met the others."""

    welcome: Welcome
    channels: dict[int, Channel]
    shares_clock: bool
    """Whether this rank's kernel is rank 0's."""


class Engine:
    """Everything that runs between `init` and `shutdown`."""

    def __init__(self, config: Config, launched: Launched, generation: int) -> None:
        """Meet the other ranks and start.  Blocks until all are there.

        Args:
            generation: how many engines this process had before.

        Raises:
            RuntimeFailure: the ranks cannot meet.
            UsageError: the environment contradicts itself.
        """
        self.config = config
        self.completions = Completions()
        self._numbers = 0
        self._generation = generation
        store = open_store(launched, config.start_timeout_s, generation)
        joined = _join(store, launched, config)
        welcome = joined.welcome
        hosts = tuple(welcome.hosts)
        self.topology = Topology.build(launched, hosts, tuple(welcome.local_ranks))
        remove_job_file(launched)
        self._welcome = welcome
        transport = _open_transport(store, launched, config, hosts)
        self._transport = transport
        ranks = tuple(range(launched.size))
        self._executor = Executor({0: Member(transport=transport, ranks=ranks, rank=launched.rank)}, self.completions)
        coordinator = None
        if launched.rank == 0:
            coordinator = Coordinator(
                {0: ranks},
                fusion_threshold_nbytes=config.fusion_threshold_nbytes,
                cache_capacity=config.cache_capacity,
            )
        self._clock = _SAME_CLOCK
        if launched.rank != 0:
            # Rank 0 answers as soon as its control thread runs; ours must not read the channel before that is done.
            channel = joined.channels[0]
            self._clock = measure(channel, same_host=joined.shares_clock, timeout_s=config.start_timeout_s)
            channel.send(ClockOffsetMessage(self._clock.offset_ns))
        self.control = ControlThread(
            rank=launched.rank,
            hosts=hosts,
            channels=joined.channels,
            coordinator=coordinator,
            executor=self._executor,
            completions=self.completions,
            config=config,
            follow_clock=self._clock.method == "min-rtt",
        )
        self.control.start()

    # Operations.

    def submit(self, entries: Sequence[Entry]) -> None:
        """Hand tensors to the runtime, all or none.

        Raises:
            ValueError: a tensor of the same name is in flight.
            HorovodInternalError: the runtime has been shut down.
        """
        if recorder.is_timeline_on():
            flow = recorder.in_compute_span()
            for entry in entries:
                request = entry.request
                self._numbers += 1
                entry.life = TensorLife(
                    self._numbers,
                    request.name,
                    request.kind,
                    entry.tensor.nbytes,
                    request.dtype,
                    request.shape,
                    entry.submitted_ns,
                    flow,
                )
        for entry in entries:
            entry.handle.entries.append(entry)
            entry.handle.remaining += 1
        try:
            self.control.submit(list(entries))
        except (ValueError, HorovodInternalError):
            for entry in entries:
                entry.handle.entries.remove(entry)
                entry.handle.remaining -= 1
            raise

    def wait(self, handles: Sequence[Handle]) -> None:
        """Block until all `handles` are done.  Errors stay in the handles."""
        if all(handle.done for handle in handles):
            return
        self.control.flush()
        opened = recorder.begin(Category.OTHER, SYNCHRONIZE)
        try:
            for handle in handles:
                self.completions.wait(handle)
        finally:
            recorder.end(opened)

    # The timeline.

    def start_timeline(self, path: str, *, mark_cycles: bool) -> None:
        """Write this rank's shard from now on.

        Raises:
            TraceError: the file cannot be written.
        """
        target = shard_path(path, self.topology.rank)
        running = recorder.timeline()
        if running is not None and running.path == target:
            _log.info("the timeline %s is being written already", target)
            return
        writer = ShardWriter(target, self._header())
        writer.pending_lives = self._pending_lives
        recorder.start_timeline(writer)
        self.control.mark_cycles = mark_cycles

    def stop_timeline(self) -> None:
        """Finish this rank's shard.  Nothing to do if none is written."""
        recorder.stop_timeline()

    def _pending_lives(self) -> list[tuple[TensorLife, int]]:
        return [
            (entry.life, entry.request.process_set) for entry in self.control.member.pending() if entry.life is not None
        ]

    def _header(self) -> ShardHeader:
        topology, welcome = self.topology, self._welcome
        return ShardHeader(
            run_id=welcome.run_id,
            rank=topology.rank,
            size=topology.size,
            local_rank=topology.local_rank,
            host=socket.gethostname(),
            boot_id=boot_id(),
            process_id=os.getpid(),
            device="cuda" if torch.cuda.is_available() else "cpu",
            clock=ShardClock(
                origin_ns=welcome.origin_ns - self._clock.offset_ns,
                origin_unix_ns=welcome.origin_unix_ns,
                offset_ns=self._clock.offset_ns,
                uncertainty_ns=self._clock.uncertainty_ns,
                method=self._clock.method,
            ),
            versions={
                "tlkit": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
        )

    def shutdown(self) -> None:
        """End the runtime of the whole job."""
        try:
            self.control.shut_down(SHUTDOWN_TIMEOUT_S)
            self._executor.join(SHUTDOWN_TIMEOUT_S)
        finally:
            recorder.stop_timeline()
            self._transport.close()


def _open_transport(store: Any, launched: Launched, config: Config, hosts: tuple[str, ...]) -> Transport:
    """Connect the data plane of the global process set."""
    chosen = choose_transport(config.cpu_operations)
    try:
        return chosen(
            store,
            launched.rank,
            launched.size,
            timeout_s=max(config.gloo_timeout_s, 1.0),
            interface=config.gloo_interface,
            loopback=len(set(hosts)) == 1,
        )
    except (RuntimeError, OSError) as error:
        raise RuntimeFailure(
            f"rank {launched.rank} cannot connect {chosen.name} to the other ranks: {str(error).splitlines()[0]}; "
            "look at their output, or name the network interface in HOROVOD_GLOO_IFACE"
        ) from error


def _join(store: Any, launched: Launched, config: Config) -> Joined:
    """Meet the other ranks: exchange who is where, and connect the control plane."""
    host, boot = host_name(), boot_id()
    hello = Hello("", launched.rank, host, boot, launched.local_rank)
    run_id = os.environ.get("TLKIT_RUN_ID") or secrets.token_hex(8)
    origin_ns, origin_unix_ns = time.monotonic_ns(), time.time_ns()
    if launched.size == 1:
        welcome = Welcome(run_id, [host], [launched.local_rank], origin_ns, origin_unix_ns)
        return Joined(welcome=welcome, channels={}, shares_clock=True)
    store.set(f"host/{launched.rank}", f"{host}\n{boot}")
    if launched.rank == 0:
        return _join_as_coordinator(store, launched, config, hello, run_id, origin_ns, origin_unix_ns)
    address, port, token, boot_of_coordinator = store.get("control").decode().split("\n")
    hello.token = token
    channel = connect(address, int(port), config.start_timeout_s)
    channel.send(hello)
    try:
        answer = channel.receive_one(config.start_timeout_s)
    except (OSError, ValueError) as error:
        raise RuntimeFailure(f"rank 0 did not answer ({error}): look at its output for an earlier error") from error
    if not isinstance(answer, Welcome):
        raise RuntimeFailure(f"rank 0 gave up during start: {answer}")
    shares_clock = boot == boot_of_coordinator != ""
    return Joined(welcome=answer, channels={0: channel}, shares_clock=shares_clock)


def _join_as_coordinator(
    store: Any,
    launched: Launched,
    config: Config,
    hello: Hello,
    run_id: str,
    origin_ns: int,
    origin_unix_ns: int,
) -> Joined:
    peers = [store.get(f"host/{rank}").decode().split("\n")[0] for rank in range(launched.size)]
    address = LOOPBACK if set(peers) == {hello.host} else _reachable_address(launched)
    token = secrets.token_hex(16)
    with listen(address) as listener:
        port = listener.getsockname()[1]
        store.set("control", f"{address}\n{port}\n{token}\n{hello.boot_id}")
        found = accept_ranks(listener, launched.size, token, config.start_timeout_s)
    hellos = [hello, *(found[rank][1] for rank in range(1, launched.size))]
    welcome = Welcome(
        run_id,
        [each.host for each in hellos],
        [each.local_rank for each in hellos],
        origin_ns,
        origin_unix_ns,
    )
    channels = {rank: channel for rank, (channel, _) in found.items()}
    for channel in channels.values():
        channel.send(welcome)
    return Joined(welcome=welcome, channels=channels, shares_clock=True)


def _reachable_address(launched: Launched) -> str:
    """The address of this host that the others reach: the one where they met, which is on rank 0's host."""
    name = launched.master_address or socket.gethostname()
    return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])


_lock = threading.Lock()
_engine: Engine | None = None
_generations = 0


def start(config: Config | None = None) -> Engine:
    """Start this process's engine, or return the one that runs."""
    global _engine, _generations  # noqa: PLW0603  one runtime a process
    with _lock:
        if _engine is not None:
            return _engine
        launched = read_launched()
        logs.set_up(launched.rank, os.environ)
        config = Config.from_environment() if config is None else config
        engine = Engine(config, launched, _generations)
        _generations += 1
        _engine = engine
        atexit.register(stop)
        _start_recording(engine)
        return engine


def _start_recording(engine: Engine) -> None:
    """Whatever goes wrong with recording, training goes on."""
    recorder.start_nvtx()
    path = engine.config.timeline_path
    if path is not None:
        try:
            engine.start_timeline(path, mark_cycles=engine.config.mark_cycles)
        except TraceError as error:
            _log.error("Error opening the Horovod Timeline file %s, will not write a timeline: %s", path, error)
    if engine.config.timeline is not None or recorder.is_on():
        instrument.install()


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


def make_entry(request: Request, tensor: torch.Tensor, output: torch.Tensor | None, handle: Handle) -> Entry:
    """A tensor to submit, stamped with the time of the call."""
    return Entry(request, tensor, output, handle, recorder.now_ns())
