"""Who had the cores while the run trained: its own ranks, or other processes of the host."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.step_loads import METERED
from ...timeline.model.trace import Trace
from ...timeline.vocabulary import HOST_CORES, HOST_CPU, PROCESS_CPU, STARVED_COUNTERS
from .steps import Steps

#: Other processes that take more of a host's cores than this disturb what is measured.
MAX_OTHERS_RATIO: Final = 0.15
_STARVED: Final = tuple(f"{part}_starved_ns" for part in METERED)
#: A training thread that lacks a core for more than this share of the time is slowed down.
MAX_STARVED_RATIO: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLoad:
    """Shares of time over the analysed steps; None where it was not recorded."""

    busy_ratio: float | None
    """Of all cores of the busiest host."""
    others_ratio: float | None
    """Of all cores of that host, taken by processes that are not ranks (loader workers count as such)."""
    starved_ratio: float | None
    """Of the steps of the worst rank: ready to run, and without a core."""
    cores_per_rank: float | None
    """Of the busiest host."""

    @property
    def is_heavy(self) -> bool:
        """Whether it is worth a word."""
        return self.takes_cores or self.lacks_cores

    @property
    def takes_cores(self) -> bool:
        """Whether other processes have much of a host."""
        return (self.others_ratio or 0) > MAX_OTHERS_RATIO

    @property
    def lacks_cores(self) -> bool:
        """Whether some rank waits for cores."""
        return (self.starved_ratio or 0) > MAX_STARVED_RATIO


def find_host_load(trace: Trace, steps: Steps) -> HostLoad | None:
    """Average the counters over the analysed steps; None if there are none."""
    if not steps.count:
        return None
    # What counts stands at the end of what it counted: at the beginning stands that of the step before.  What measures now and
    # then, as the host's cores, is of the time where it stands.
    counters, sums = _within(trace.counters, "ts_ns", steps), _within(trace.sums, "end_ns", steps, after=True)
    starved_ratio = _starved_ratio(_within(counters, "ts_ns", steps, after=True), sums, steps)
    # All names of a trace are categories here: pandas looks them up by numbers too small for thousands.
    names = counters["name"].cat.remove_unused_categories()
    means = counters.groupby([names, "rank"], observed=True)["value"].mean()
    busiest = max(_hosts(trace, means, sums), default=None, key=lambda host: host[0])
    if busiest is None and starved_ratio is None:
        return None
    busy, others, cores = busiest or (None, None, None)
    return HostLoad(busy_ratio=busy, others_ratio=others, starved_ratio=starved_ratio, cores_per_rank=cores)


def _within(table: pd.DataFrame, column: str, steps: Steps, *, after: bool = False) -> pd.DataFrame:
    """Rows whose time lies in their rank's analysed steps, and `after` their beginning."""
    rows = pd.Series(range(len(steps.ranks)), index=steps.ranks).reindex(table["rank"]).fillna(-1).to_numpy(np.int64)
    at_ns = table[column].to_numpy()
    begun_ns, end_ns = steps.start_ns[rows, 0], steps.end_ns[rows, -1]
    has_begun = at_ns > begun_ns if after else at_ns >= begun_ns
    within: pd.DataFrame = table[(rows >= 0) & has_begun & (at_ns <= end_ns)]
    return within


def _starved_ratio(counters: pd.DataFrame, sums: pd.DataFrame, steps: Steps) -> float | None:
    """The share of its steps for which the worst rank's training thread was ready to run and had no core."""
    lengths = (steps.end_ns[:, -1] - steps.start_ns[:, 0]).astype(np.float64)
    starved = counters[counters["name"].isin(list(STARVED_COUNTERS.values()))]
    lost = starved.groupby("rank", observed=True)["value"].sum()
    of_sums = sums[sums[_STARVED[0]] >= 0]
    if len(of_sums):
        lost = lost.add(of_sums[list(_STARVED)].sum(axis=1).groupby(of_sums["rank"]).sum(), fill_value=0.0)
    if not len(lost):
        return None
    return float((lost.reindex(list(steps.ranks), fill_value=0.0).to_numpy() / np.maximum(lengths, 1.0)).max())


def _own_percent(sums: pd.DataFrame) -> dict[int, float]:
    """By rank how much of one core its process had, in steps of which only sums are recorded."""
    told = sums[sums["process_ran_ns"] >= 0]
    by_rank = told.groupby("rank")
    lengths_ns = (told["end_ns"] - told["start_ns"]).groupby(told["rank"]).sum()
    ratios = by_rank["process_ran_ns"].sum() / lengths_ns.clip(lower=1)
    return {int(str(rank)): 100 * float(ratio) for rank, ratio in ratios.items()}


def _hosts(
    trace: Trace, means: "pd.Series[float]", sums: pd.DataFrame
) -> list[tuple[float, float | None, float | None]]:
    """For each host that was metered the busy share of its cores, that of others, and its cores for each rank."""
    metered = means.to_dict()

    def of(name: str, ranks: list[int]) -> list[float]:
        return [float(metered[name, rank]) for rank in ranks if (name, rank) in metered]

    of_sums = _own_percent(sums)
    by_host: dict[str, list[int]] = {}
    for rank in trace.meta.ranks:
        by_host.setdefault(trace.meta.hosts.get(rank, ""), []).append(rank)
    found = []
    for ranks in by_host.values():
        busy, cores = of(HOST_CPU, ranks), of(HOST_CORES, ranks)
        own = of(PROCESS_CPU, ranks) or [of_sums[rank] for rank in ranks if rank in of_sums]
        if not busy:
            continue
        ratio = busy[0] / 100
        is_whole = bool(cores) and trace.meta.size == len(trace.meta.ranks)
        known = is_whole and len(own) == len(ranks)
        others = max(ratio - sum(own) / 100 / max(cores[0], 1), 0.0) if known else None
        found.append((ratio, others, cores[0] / len(ranks) if is_whole else None))
    return found
