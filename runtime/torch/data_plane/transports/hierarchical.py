"""Allreduce in three steps for ranks on several hosts: within each host, across hosts, within each host again.

Each rank of a host ends up with one piece of the host's sum, and reduces it with the ranks of the same place on the other
hosts; so the network between hosts carries every byte once a host instead of once a rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ....core.binding import Place
from ....core.operations import ReduceOp
from .base import Transport


class HierarchicalTransport:
    """A transport within each host and one across hosts; everything but allreduce goes through the plain one."""

    def __init__(self, open_plain: Callable[[Place], Transport], place: Place, hosts: Sequence[str]) -> None:
        """Connect three times: all ranks, those of this host, and those of this place on every host.

        Args:
            hosts: host of each rank of the set; `fits` has to hold.
        """
        mine = [rank for rank, host in enumerate(hosts) if host == hosts[place.rank]]
        peers = [ranks[mine.index(place.rank)] for ranks in _by_host(hosts)]
        self._plain = open_plain(place)
        self._local = open_plain(_part(place, mine, 1 + place.number * 2, "local"))
        self._cross = open_plain(_part(place, peers, 2 + place.number * 2, "cross"))
        self._local_rank, self._local_size = mine.index(place.rank), len(mine)
        self.name = self._plain.name

    @staticmethod
    def fits(hosts: Sequence[str]) -> bool:
        """Whether there are several hosts with the same number of ranks each, and more than one."""
        sizes = {len(ranks) for ranks in _by_host(hosts)}
        return len(set(hosts)) > 1 and len(sizes) == 1 and sizes != {1}

    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport`."""
        if op != ReduceOp.SUM:
            self._plain.allreduce(buffer, op)
            return
        share, rest = divmod(buffer.numel(), self._local_size)
        counts = [share + (place < rest) for place in range(self._local_size)]
        piece = buffer.new_empty(counts[self._local_rank])
        self._local.reducescatter(piece, buffer, counts)
        self._cross.allreduce(piece, op)
        self._local.allgather(torch.split(buffer, counts), piece)

    def allgather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """See `Transport`."""
        self._plain.allgather(outputs, source)

    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """See `Transport`."""
        self._plain.broadcast(buffer, root)

    def alltoall(
        self, output: torch.Tensor, source: torch.Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> None:
        """See `Transport`."""
        self._plain.alltoall(output, source, received, sent)

    def reducescatter(self, output: torch.Tensor, source: torch.Tensor, counts: Sequence[int]) -> None:
        """See `Transport`."""
        self._plain.reducescatter(output, source, counts)

    def close(self) -> None:
        """See `Transport`."""
        for transport in (self._cross, self._local, self._plain):
            transport.close()

    def abort(self) -> None:
        """See `Transport`."""
        for transport in (self._cross, self._local, self._plain):
            transport.abort()


def _by_host(hosts: Sequence[str]) -> list[list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    return list(ranks.values())


def _part(place: Place, chosen: Sequence[int], number: int, label: str) -> Place:
    """Some ranks of `place` as a place of their own."""
    ranks = tuple(place.ranks[rank] for rank in chosen)
    store = place.store.part(f"{label}/{ranks[0]}")
    local = label == "local"
    return replace(
        place,
        store=store,
        ranks=ranks,
        rank=chosen.index(place.rank),
        number=number + 1000,
        loopback=place.loopback or (local and not place.interface),
        one_host=local and not place.interface,
    )
