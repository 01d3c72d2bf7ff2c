"""How the ranks of a job meet: who is where, which process sets there are, and the connections of the control plane."""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...timeline.errors import RuntimeFailure
from .config import Config
from .control.channel import Channel
from .control.messages import Abort, Hello, Welcome
from .door import Door, Guest
from .handshake import Caller, Purpose, versions_differ
from .job_store import JobStore
from .meeting_places import MeetingPlace, enter
from .sealing import Seal
from .topology import Launched, boot_id, host_name

Wanted = tuple[bool, list[int]]
"""A process set that a rank wants: whether it comes from an MPI communicator, and its global ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """What a rank knows after it has met the others."""

    welcome: Welcome
    channels: dict[int, Channel]
    store: JobStore
    seal: Seal
    shares_clock: bool
    """Whether this rank's kernel is rank 0's."""

    def close(self) -> None:
        """Leave the others, when what was to follow has failed."""
        for channel in self.channels.values():
            channel.close()
        self.store.close()


def meet(place: MeetingPlace | None, launched: Launched, config: Config, wanted: Sequence[Wanted]) -> Joined:
    """Exchange who is where, and connect the control plane.  Blocks until all ranks are there.

    Args:
        place: where to meet the others; None if there are none.
        wanted: process sets to start with; the same list on all ranks.

    Raises:
        RuntimeFailure: a rank is missing, or the ranks want different process sets.
    """
    hello = Hello(launched.rank, host_name(), boot_id(), launched.local_rank, list(wanted))
    if launched.rank != 0 and place is not None:
        return _meet_coordinator(place, hello, config.start_timeout_s)
    return _meet_as_coordinator(place, launched, config.start_timeout_s, hello)


def _meet_coordinator(place: MeetingPlace, hello: Hello, timeout_s: float) -> Joined:
    caller = Caller(hello.rank)
    with contextlib.ExitStack() as failed:
        channel = Channel(enter(place, Purpose.CONTROL, caller, timeout_s))
        failed.callback(channel.close)
        with contextlib.suppress(OSError):  # rank 0 has closed; why, it has said before
            channel.send(hello)
        kept = failed.enter_context(enter(place, Purpose.STORE, caller, timeout_s))
        try:
            answer = channel.receive_one(timeout_s)
        except (OSError, ValueError) as error:
            raise RuntimeFailure(f"rank 0 did not answer ({error}): look at its output for an earlier error") from error
        if not isinstance(answer, Welcome) or answer.error:
            raise RuntimeFailure(answer.reason if isinstance(answer, Abort) else getattr(answer, "error", str(answer)))
        failed.pop_all()
    return Joined(
        welcome=answer,
        channels={0: channel},
        store=JobStore(kept),
        seal=Seal(answer.key),
        shares_clock=hello.boot_id == answer.boot_id != "",
    )


def _meet_as_coordinator(place: MeetingPlace | None, launched: Launched, timeout_s: float, hello: Hello) -> Joined:
    run_id = os.environ.get("TLKIT_RUN_ID") or secrets.token_hex(8)
    welcome = Welcome(run_id, [], [], time.monotonic_ns(), time.time_ns())
    welcome.boot_id, welcome.key = hello.boot_id, secrets.token_bytes(32)
    arrivals = _Arrivals(launched.size)
    if place is not None:
        with place.open(timeout_s) as door:
            arrivals.let_in(door, timeout_s)
    hellos = [hello, *arrivals.hellos(timeout_s)]
    welcome.hosts = [each.host for each in hellos]
    welcome.local_ranks = [each.local_rank for each in hellos]
    welcome.process_sets, welcome.error = agree_on_sets([each.process_sets for each in hellos])
    for rank, channel in arrivals.channels.items():
        try:
            channel.send(welcome)
        except OSError as error:
            raise RuntimeFailure(f"rank {rank} exited while the ranks connected: see its output") from error
    if welcome.error:
        arrivals.close()
        raise RuntimeFailure(welcome.error)
    return Joined(
        welcome=welcome,
        channels=dict(sorted(arrivals.channels.items())),
        store=JobStore.serve(list(arrivals.stores.values())),
        seal=Seal(welcome.key),
        shares_clock=True,
    )


class _Arrivals:
    """The ranks that have come to rank 0, each with two connections."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.channels: dict[int, Channel] = {}
        self.stores: dict[int, socket.socket] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._processes: dict[int, bytes] = {}

    def let_in(self, door: Door, timeout_s: float) -> None:
        """Wait for all.

        Raises:
            RuntimeFailure: not all came in time; names the missing ones.
        """
        deadline = time.monotonic() + timeout_s
        while min(len(self.channels), len(self.stores)) < self._size - 1:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                missing = sorted(set(range(1, self._size)) - set(self.stores))
                self.close()
                raise RuntimeFailure(
                    f"ranks {missing} did not connect within {timeout_s:g} s: look at their output for an earlier error, or "
                    "raise HOROVOD_START_TIMEOUT"
                )
            for guest in door.wait(left_s):
                self._receive(guest)

    def _receive(self, guest: Guest) -> None:
        rank, connection = guest.claim.rank, guest.connection
        if not guest.claim.fits:
            connection.close()
            self.close()
            raise RuntimeFailure(versions_differ(f"rank {rank}", guest.claim.version))
        if guest.claim.purpose is Purpose.STORE:
            if guest.claim.process == self._processes.get(rank):
                self.stores[rank] = connection
            else:
                connection.close()
        elif not 0 < rank < self._size:
            _refuse(connection, f"there is no rank {rank} among {self._size}")
        elif rank in self._sockets and not _has_closed(self._sockets[rank]):
            _refuse(
                connection,
                f"another process is rank {rank} already: check the variables that the launcher sets for the ranks",
            )
        else:
            self._sockets[rank], self._processes[rank] = connection, guest.claim.process
            self.channels[rank] = Channel(connection)

    def hellos(self, timeout_s: float) -> list[Hello]:
        """What they say of themselves, by rank.

        Raises:
            RuntimeFailure: one has gone, or says something else.
        """
        found = []
        for rank, channel in sorted(self.channels.items()):
            try:
                hello = channel.receive_one(timeout_s)
            except (OSError, ValueError) as error:
                self.close()
                raise RuntimeFailure(
                    f"rank {rank} exited while the ranks connected ({error}): look at its output"
                ) from error
            if not isinstance(hello, Hello) or hello.rank != rank:
                self.close()
                raise RuntimeFailure(f"rank {rank} sent an unexpected message instead of its identity: {hello}")
            found.append(hello)
        return found

    def close(self) -> None:
        """Let go of all."""
        for channel in self.channels.values():
            channel.close()
        for connection in self.stores.values():
            connection.close()


def _refuse(connection: socket.socket, reason: str) -> None:
    with contextlib.suppress(OSError):
        Channel(connection).send(Abort(reason))
    connection.close()


def _has_closed(connection: socket.socket) -> bool:
    """Whether the process at the other end has given up."""
    try:
        # Not through the socket's own timeout, which others rely on.
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def agree_on_sets(wanted: Sequence[Sequence[Wanted]]) -> tuple[list[list[int]], str]:
    """The process sets that all ranks want, or why they cannot have them.

    Sets given by their ranks have to be the same on all ranks.  Those that come from a communicator are each rank's own (as
    after `Comm.Split`); together they make as many sets as there are different ones.

    Args:
        wanted: by rank.

    Returns:
        Global ranks of each set, in the order of their ids, and an error or "".
    """
    size = len(wanted)
    counts = {len(of_rank) for of_rank in wanted}
    if len(counts) > 1:
        who = ", ".join(f"{len(of_rank)} on rank {rank}" for rank, of_rank in enumerate(wanted))
        return [], f"Different ranks tried to set up mismatching numbers of process sets: {who}"
    agreed: list[list[int]] = []
    for index, same in enumerate(zip(*wanted, strict=True)):
        variants = sorted({tuple(sorted(ranks)) for _, ranks in same})
        if len(variants) > 1 and not all(from_communicator for from_communicator, _ in same):
            kind = "size" if len({len(ranks) for ranks in variants}) > 1 else "values"
            who = "; ".join(f"{sorted(ranks)} on rank {rank}" for rank, (_, ranks) in enumerate(same))
            return [], f"Attempted to register process set with mismatching {kind} on different ranks: {who}"
        for ranks in variants:
            error = check_ranks(ranks, size)
            if not error and (list(ranks) in agreed or len(ranks) == size):
                error = f"a duplicate: ranks {list(ranks)} are a process set already"
            if error:
                return [], f"process_sets[{index}] is {error}"
            agreed.append(list(ranks))
    return agreed, ""


def check_ranks(ranks: Sequence[int], size: int) -> str:
    """What is wrong with the ranks of a process set; "" if nothing is."""
    if not ranks:
        return "empty"
    if len(set(ranks)) < len(ranks):
        return f"wrong: {list(ranks)} contains a rank twice"
    wrong = [rank for rank in ranks if not 0 <= rank < size]
    return f"wrong: there is no rank {wrong[0]} among {size}" if wrong else ""
