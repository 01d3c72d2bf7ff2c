"""How the ranks of a job meet: who is where, which process sets there are, and the connections of the control plane."""

import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...timeline.errors import RuntimeFailure
from .addresses import LOOPBACK
from .config import Config
from .connections import accept_ranks, connect, listen
from .control.channel import Channel
from .control.messages import Hello, Welcome
from .topology import Launched, boot_id, host_name

Wanted = tuple[bool, list[int]]
"""A process set that a rank wants: whether it comes from an MPI communicator, and its global ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """What a rank knows after it has met the others."""

    welcome: Welcome
    channels: dict[int, Channel]
    shares_clock: bool
    """Whether this rank's kernel is rank 0's."""


def meet(store: Any, launched: Launched, config: Config, wanted: Sequence[Wanted]) -> Joined:
    """Exchange who is where, and connect the control plane.  Blocks until all ranks are there.

    Args:
        store: shared by all ranks.
        wanted: process sets to start with; the same list on all ranks.

    Raises:
        RuntimeFailure: a rank is missing, or the ranks want different process sets.
    """
    host, boot = host_name(), boot_id()
    hello = Hello("", launched.rank, host, boot, launched.local_rank, list(wanted))
    run_id = os.environ.get("TLKIT_RUN_ID") or secrets.token_hex(8)
    welcome = Welcome(run_id, [], [], time.monotonic_ns(), time.time_ns())
    if launched.size > 1:
        store.set(f"host/{launched.rank}", f"{host}\n{boot}")
        if launched.rank != 0:
            return _meet_coordinator(store, hello, config)
    return _meet_as_coordinator(store, launched, config, hello, welcome)


def _meet_coordinator(store: Any, hello: Hello, config: Config) -> Joined:
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
    if answer.error:
        channel.close()
        raise RuntimeFailure(answer.error)
    shares_clock = hello.boot_id == boot_of_coordinator != ""
    return Joined(welcome=answer, channels={0: channel}, shares_clock=shares_clock)


def _meet_as_coordinator(store: Any, launched: Launched, config: Config, hello: Hello, welcome: Welcome) -> Joined:
    found: dict[int, tuple[Channel, Hello]] = {}
    if launched.size > 1:
        peers = [store.get(f"host/{rank}").decode().split("\n")[0] for rank in range(launched.size)]
        address = LOOPBACK if set(peers) == {hello.host} else _reachable_address(launched)
        token = secrets.token_hex(16)
        with listen(address) as listener:
            port = listener.getsockname()[1]
            store.set("control", f"{address}\n{port}\n{token}\n{hello.boot_id}")
            found = accept_ranks(listener, launched.size, token, config.start_timeout_s)
    hellos = [hello, *(found[rank][1] for rank in range(1, launched.size))]
    welcome.hosts = [each.host for each in hellos]
    welcome.local_ranks = [each.local_rank for each in hellos]
    welcome.process_sets, welcome.error = agree_on_sets([each.process_sets for each in hellos])
    channels = {rank: channel for rank, (channel, _) in found.items()}
    for channel in channels.values():
        channel.send(welcome)
    if welcome.error:
        raise RuntimeFailure(welcome.error)
    return Joined(welcome=welcome, channels=channels, shares_clock=True)


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
        return f"wrong: {list(ranks)} names a rank twice"
    wrong = [rank for rank in ranks if not 0 <= rank < size]
    return f"wrong: there is no rank {wrong[0]} among {size}" if wrong else ""


def _reachable_address(launched: Launched) -> str:
    """The address of this host that the others reach: the one where they met, which is on rank 0's host."""
    name = launched.master_address or socket.gethostname()
    return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
