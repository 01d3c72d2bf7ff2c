"""What a step had to wait for, from its end back to its beginning, through all ranks.

The walk begins where the step ends last.  A rank that works is on the path.  Where it was blocked in communication, the
collective that it waited for is: from the moment when the last rank had asked for it.  If that rank was another one, the walk
goes on there, at what that rank did before it asked.  What lies on the path makes the step as long as it is; anything else
could take a little longer without anybody noticing.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from .breakdown import EXPOSED, IDLE, PARTS
from .facts import Facts
from .intervals import Intervals, total_within, union

#: A walk that takes more turns than this in one step has lost its way.
_MOST_TURNS: Final = 10_000

COLUMNS: Final = ("step", "rank", "part", "ns")


@dataclass(slots=True)
class _Rank:
    """One rank's waits and the collectives that ended them, by time."""

    wait_starts: list[int]
    wait_ends: list[int]
    ends: list[int]
    """Of collectives."""
    asked_last: list[int]
    """For each of them when the last rank had asked."""
    asked_by: list[int]
    """Row of that rank."""


def critical_path(facts: Facts) -> pd.DataFrame:
    """The path of every analysed step.

    Returns:
        A row a step, rank and part: `step` (number), `rank`, `part` (one of PARTS), `ns` on the path.  The rows of a step sum to
        the time from the walk's first rank's beginning of the step to the last rank's end of it.  Empty for a trace that does
        not say what the ranks compute.
    """
    if not facts.breakdown.knows_compute or not facts.steps.count:
        return pd.DataFrame({name: [] for name in COLUMNS})
    ranks = _ranks(facts)
    windows: list[tuple[int, int, int, int]] = []  # row, start, end, column
    for column in range(facts.steps.count):
        windows += _walk(facts, ranks, column)
    return _by_part(facts, np.array(windows, dtype=np.int64).reshape(-1, 4))


def _ranks(facts: Facts) -> list[_Rank]:
    exposed = [part for part in EXPOSED if part != IDLE or not facts.breakdown.on_device]
    table = facts.collectives[facts.collectives["seq"] >= 0]
    asked = np.where(table["submitted_ns"] >= 0, table["submitted_ns"], table["start_ns"])
    table = table.assign(asked_ns=asked)
    row_of = {rank: row for row, rank in enumerate(facts.ranks)}
    by_asking = table.sort_values("asked_ns", kind="stable").groupby(["process_set", "seq"], observed=True)
    last = by_asking[["asked_ns", "rank"]].last().rename(columns={"asked_ns": "last_ns", "rank": "last_rank"})
    table = table.join(last, on=["process_set", "seq"])
    found = []
    for row, rank in enumerate(facts.ranks):
        mine = table[table["rank"] == rank]
        end = (mine["start_ns"] + mine["dur_ns"]).to_numpy()
        order = np.argsort(end, kind="stable")
        moments = facts.breakdown.moments[row]
        waits: Intervals = union(*(moments[part] for part in exposed if part in moments))
        found.append(
            _Rank(
                wait_starts=waits[:, 0].tolist(),
                wait_ends=waits[:, 1].tolist(),
                ends=end[order].tolist(),
                asked_last=mine["last_ns"].to_numpy()[order].tolist(),
                asked_by=[row_of.get(number, row) for number in mine["last_rank"].to_numpy()[order].tolist()],
            )
        )
    return found


def _walk(facts: Facts, ranks: list[_Rank], column: int) -> list[tuple[int, int, int, int]]:
    """Stretches of time on the path of one step: (row, start, end, column)."""
    row = int(np.argmax(facts.steps.end_ns[:, column]))
    at = int(facts.steps.end_ns[row, column])
    path = []
    for _ in range(_MOST_TURNS):
        begin = int(facts.steps.start_ns[row, column])
        if at <= begin:
            break
        rank = ranks[row]
        position = bisect_right(rank.wait_starts, at - 1) - 1
        if position < 0 or rank.wait_ends[position] <= begin:
            path.append((row, begin, at, column))
            break
        wait_start, wait_end = max(rank.wait_starts[position], begin), min(rank.wait_ends[position], at)
        if wait_end < at:
            path.append((row, wait_end, at, column))
        # Of the collectives that ended within the wait the last one ended it.
        found = bisect_right(rank.ends, wait_end) - 1
        at = wait_start
        if found >= 0 and rank.ends[found] > wait_start:
            asked, other = rank.asked_last[found], rank.asked_by[found]
            if other != row and wait_start < asked < wait_end:
                path.append((row, asked, wait_end, column))
                row, at = other, asked
                continue
        path.append((row, wait_start, wait_end, column))
    return path


def _by_part(facts: Facts, windows: np.ndarray) -> pd.DataFrame:
    """What the ranks did in the stretches, added up."""
    rest = IDLE if facts.breakdown.on_device else "other"
    total = np.zeros((len(facts.ranks), len(PARTS), facts.steps.count), dtype=np.int64)
    for row in range(len(facts.ranks)):
        mine = windows[windows[:, 0] == row]
        known = np.zeros(len(mine), dtype=np.int64)
        for part, moments in facts.breakdown.moments[row].items():
            if part != rest:
                spent = total_within(moments, mine[:, 1], mine[:, 2])
                known += spent
                np.add.at(total[row, PARTS.index(part)], mine[:, 3], spent)
        np.add.at(total[row, PARTS.index(rest)], mine[:, 3], mine[:, 2] - mine[:, 1] - known)
    row_index, part_index, column = np.nonzero(total)
    return pd.DataFrame(
        {
            "step": facts.steps.numbers[column],
            "rank": np.array(facts.ranks)[row_index],
            "part": np.array(PARTS, dtype=object)[part_index],
            "ns": total[row_index, part_index, column],
        }
    ).sort_values(["step", "rank"], kind="stable", ignore_index=True)


def summarise_path(path: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Which ranks and parts hold the steps, and how often.

    Args:
        path: what `critical_path` returns.
        steps: how many steps were analysed.

    Returns:
        `rank`, `part`, `mean_ns` (of a step), `share` (of all paths), `steps_ratio` (of the steps on whose path it is); largest
        share first.
    """
    if path.empty:
        return pd.DataFrame({name: [] for name in ("rank", "part", "mean_ns", "share", "steps_ratio")})
    table = path.groupby(["rank", "part"]).agg(mean_ns=("ns", "sum"), steps_ratio=("step", "nunique")).reset_index()
    table["share"] = table["mean_ns"] / max(float(table["mean_ns"].sum()), 1.0)
    table["mean_ns"] /= max(steps, 1)
    table["steps_ratio"] /= max(steps, 1)
    ordered = table.sort_values("share", ascending=False, kind="stable", ignore_index=True)
    return ordered[["rank", "part", "mean_ns", "share", "steps_ratio"]]
