"""Ranks whose operators use more threads than they have cores."""

from dataclasses import dataclass
from typing import Final

from ...timeline.model.trace import Trace
from ...timeline.vocabulary import HOST_CORES, OPERATOR_THREADS, OWN_CORES

#: So many times as many threads as cores are in each other's way.
CROWDED: Final = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """Of one rank."""

    threads: int
    """That compute an operator together."""
    cores: float
    """That the rank has, or its share of those that the ranks of its host have together."""


def find_crowds(trace: Trace) -> dict[int, Crowd]:
    """The ranks with more threads than cores, of those that tell.

    Other frameworks than PyTorch have threads of their own, which are not told.
    """
    if trace.meta.framework not in {"", "torch"}:
        return {}
    told = trace.counters[trace.counters["name"].isin([OPERATOR_THREADS, OWN_CORES, HOST_CORES])]
    last: dict[tuple[str, int], float] = {}
    for name, rank, value in zip(told["name"], told["rank"], told["value"], strict=True):
        last[str(name), int(rank)] = float(value)
    hosts = [trace.meta.hosts.get(rank, "") for rank in trace.meta.ranks]
    found = {}
    for rank, host in zip(trace.meta.ranks, hosts, strict=True):
        threads, own = last.get((OPERATOR_THREADS, rank), 0.0), last.get((OWN_CORES, rank), 0.0)
        if not own:
            continue
        neighbours = [other for other, its in zip(trace.meta.ranks, hosts, strict=True) if its == host]
        all_cores = max((last.get((HOST_CORES, other), own) for other in neighbours), default=own)
        # Ranks that are bound have cores of their own; others share what each of them may use.
        cores = own / len(neighbours) if own * len(neighbours) > all_cores else own
        if threads >= CROWDED * max(cores, 1.0):
            found[rank] = Crowd(threads=round(threads), cores=cores)
    return found
