"""Ranks whose operators use more threads than they have cores, and ranks that are bound to the same cores."""

from dataclasses import dataclass
from typing import Final

from ...timeline.model.trace import Trace
from ...timeline.vocabulary import FIRST_CORE, HOST_CORES, LAST_CORE, OPERATOR_THREADS, OWN_CORES

#: So many times as many threads as cores are in each other's way.
CROWDED: Final = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """Of one rank."""

    threads: int
    """That compute an operator together."""
    cores: float
    """That the rank has, or its share of those that the ranks of its host have together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """Ranks of one host that may use the same cores only, fewer than they are."""

    ranks: tuple[int, ...]
    cores: int
    """How many."""
    first: int
    """The lowest number of a core among them."""
    last: int
    """And the highest."""
    host_cores: int
    """How many the host has."""


def find_bindings(trace: Trace) -> list[Binding]:
    """Ranks that are bound to the same cores, fewer than they are, while their host has more; by their first rank.

    Cores are taken for the same if their number, the lowest and the highest of them are.
    """
    last = _newest(trace, [OWN_CORES, FIRST_CORE, LAST_CORE, HOST_CORES])
    together: dict[tuple[str, int, int, int], list[int]] = {}
    for rank in trace.meta.ranks:
        if (FIRST_CORE, rank) in last and (OWN_CORES, rank) in last:
            told = [round(last[name, rank]) for name in (OWN_CORES, FIRST_CORE, LAST_CORE)]
            together.setdefault((trace.meta.hosts.get(rank, ""), told[0], told[1], told[2]), []).append(rank)
    found = []
    for (_, cores, lowest, highest), ranks in together.items():
        host_cores = round(max(last.get((HOST_CORES, rank), 0.0) for rank in ranks))
        if cores < len(ranks) and cores < host_cores:
            found.append(Binding(ranks=tuple(ranks), cores=cores, first=lowest, last=highest, host_cores=host_cores))
    return sorted(found, key=lambda binding: binding.ranks)


def _newest(trace: Trace, names: list[str]) -> dict[tuple[str, int], float]:
    """The last value of counters, by name and rank."""
    told = trace.counters[trace.counters["name"].isin(names)]
    return {
        (str(name), int(rank)): float(value)
        for name, rank, value in zip(told["name"], told["rank"], told["value"], strict=True)
    }


def find_crowds(trace: Trace) -> dict[int, Crowd]:
    """The ranks with more threads than cores, of those that tell.

    Other frameworks than PyTorch have threads of their own, which are not told.
    """
    if trace.meta.framework not in {"", "torch"}:
        return {}
    last = _newest(trace, [OPERATOR_THREADS, OWN_CORES, HOST_CORES])
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
