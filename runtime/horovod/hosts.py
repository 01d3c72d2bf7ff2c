"""What scripts import from `horovod.runner.common.util.hosts`: hosts and slots, and which rank gets which."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ..launch.hosts import parse_hosts as _parse
from ..launch.hosts import read_hostfile
from ..launch.placement import place


@dataclass
class HostInfo:
    """A host and how many ranks it may have."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> "HostInfo":
        """Read `name:slots`.

        Raises:
            UsageError: it has another form.
        """
        return HostInfo(*_parse(host_string)[0])


@dataclass
class SlotInfo:
    """The place of one rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """All but the host, with commas."""
        numbers = self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size
        return ",".join(map(str, numbers))

    @classmethod
    def from_response_string(cls, response_string: str) -> Self:
        """Read what `to_response_string` wrote."""
        rank, size, local_rank, local_size, cross_rank, cross_size = map(int, response_string.split(","))
        return cls("", rank, local_rank, cross_rank, size, local_size, cross_size)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Read `name:slots,name:slots`.

    Raises:
        UsageError: it has another form.
    """
    return [HostInfo(*each) for each in _parse(hosts_string)]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names of `name:slots,name:slots`, and the slots by name."""
    found = parse_hosts(hosts)
    return [each.hostname for each in found], {each.hostname: each.slots for each in found}


def parse_host_files(filename: str) -> str:
    """A file with a line `name slots=N` a host, as `name:slots,name:slots`."""
    return ",".join(f"{name}:{slots}" for name, slots in read_hostfile(filename))


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Give ranks to hosts, in the given order: as many as there are slots, `max_num_proc` at most.

    Raises:
        UsageError: there are fewer slots than `min_num_proc`.
    """
    slots = sum(host.slots for host in hosts)
    ranks = max(min_num_proc, slots if max_num_proc is None else min(slots, max_num_proc))
    return [
        SlotInfo(slot.host, slot.rank, slot.local_rank, slot.cross_rank, ranks, slot.local_size, slot.cross_size)
        for slot in place([(host.hostname, host.slots) for host in hosts], ranks)
    ]
