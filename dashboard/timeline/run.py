"""A run as the timeline shows it: its rows, and what is derived from them when somebody first asks."""

import threading
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd

from ...collector.analysis import Analysis
from ...collector.model.blame import find_path
from ...collector.model.breakdown import EXPOSED, IDLE
from ...collector.model.intervals import EMPTY, Intervals, union
from ...collector.model.launches import Launches, rank_of
from ...timeline.model.trace import STEP_COLUMNS, Trace, by_rank, make_table
from .block_sums import BlockSums
from .rows import CATEGORIES, Rows, make_rows
from .times import Codes, Values


class Run:
    """An analysis and what the timeline's routes need of it.  Safe to use from several threads."""

    def __init__(self, analysis: Analysis, launches: Launches | None = None) -> None:
        """Arrange the spans; everything else comes later.

        Args:
            launches: those of the trace, if it has none itself (launches.py).
        """
        self.analysis = analysis
        self.trace = analysis.trace
        self.rows: Rows = make_rows(analysis.trace, analysis.facts.breakdown)
        self.lock = threading.Lock()
        self.kept: dict[Any, Any] = {}
        """Answers of table.py, under `lock`."""
        self._exposed: dict[int, Intervals] = {}
        self._launches = launches

    def launches(self, rank: int) -> pd.DataFrame:
        """How the activities of a rank's device were launched: LAUNCH_COLUMNS."""
        return rank_of(self.trace.launches, rank) if self._launches is None else self._launches.of_rank(rank)

    def whole_trace(self) -> Trace:
        """The trace with its launches, for those who write it."""
        return self.trace if self._launches is None else replace(self.trace, launches=self._launches.table())

    @cached_property
    def step_table(self) -> pd.DataFrame:
        """All steps of all ranks (STEP_COLUMNS), also those that are not analysed; by rank and start."""
        steps = self.analysis.facts.steps
        table = self.trace.steps
        if table.empty:
            table = make_table(
                STEP_COLUMNS,
                {
                    "rank": np.repeat(np.array(steps.ranks, dtype=np.int64), steps.count),
                    "step": np.tile(steps.numbers, len(steps.ranks)),
                    "start_ns": steps.start_ns.ravel(),
                    "end_ns": steps.end_ns.ravel(),
                },
            )
        return table.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)

    @cached_property
    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Number, first start and last end over all ranks of every step, in order of time: int64[S] each."""
        table = self.step_table.groupby("step").agg(low=("start_ns", "min"), high=("end_ns", "max")).sort_values("low")
        return table.index.to_numpy(dtype=np.int64), table["low"].to_numpy(), table["high"].to_numpy()

    @cached_property
    def steps_by_rank(self) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Number, start and end of the steps of each rank."""
        return {
            rank: (table["step"].to_numpy(), table["start_ns"].to_numpy(), table["end_ns"].to_numpy())
            for rank, table in by_rank(self.step_table).items()
        }

    def step_of(self, rank: int, at_ns: int) -> int:
        """The step of a rank at a moment; -1 for none."""
        found = self.steps_by_rank.get(rank)
        if found is None:
            return -1
        numbers, starts, ends = found
        place = int(np.searchsorted(starts, at_ns, side="right")) - 1
        return int(numbers[place]) if place >= 0 and at_ns < ends[place] else -1

    @cached_property
    def path(self) -> pd.DataFrame | None:
        """The critical path (blame.find_path); None where the trace does not allow one."""
        facts = self.analysis.facts
        return find_path(facts.graph) if facts.graph is not None and not facts.is_of_parts else None

    def moments_of(self, rank: int) -> dict[str, Intervals]:
        """What a rank does at each moment, by part (Breakdown.moments); empty where nothing is known."""
        breakdown = self.analysis.facts.breakdown
        return breakdown.moments[breakdown.ranks.index(rank)] if rank in breakdown.ranks and breakdown.moments else {}

    def hidden_of(self, rank: int) -> Intervals:
        """When a rank communicates behind computation."""
        breakdown = self.analysis.facts.breakdown
        return breakdown.hidden[breakdown.ranks.index(rank)] if rank in breakdown.ranks and breakdown.hidden else EMPTY

    def exposed_of(self, rank: int) -> Intervals:
        """When a rank waits for communication."""
        found = self._exposed.get(rank)
        if found is None:
            moments = self.moments_of(rank)
            found = union(*(moments[part] for part in EXPOSED if part in moments and part != IDLE))
            self._exposed[rank] = found
        return found

    @cached_property
    def exposed_ns(self) -> dict[int, int]:
        """How long each rank waits for communication in all."""
        return {rank: int((moments[:, 1] - moments[:, 0]).sum()) for rank, moments in self._all_exposed()}

    def _all_exposed(self) -> list[tuple[int, Intervals]]:
        return [(rank, self.exposed_of(rank)) for rank in self.trace.meta.ranks]

    @cached_property
    def categories(self) -> list[int]:
        """Which of CATEGORIES the rows hold."""
        category = self.rows.category
        if isinstance(category, Codes):
            return category.used()
        parts = [np.unique(category[at : at + _AT_ONCE]) for at in range(0, len(category), _AT_ONCE)]
        return sorted({int(number) for part in parts for number in part.tolist()})

    @cached_property
    def groups(self) -> tuple[Values, np.ndarray, np.ndarray]:
        """For each position of the rows the kind of its span: (code[n], category of each code, name's code of each code).

        A code stands for a pair of category and name that occurs.
        """
        spans, rows = self.trace.spans, self.rows
        name_of_span = spans["name"].cat.codes.to_numpy()
        names = max(len(spans["name"].cat.categories), 1)
        occurs = np.zeros(len(CATEGORIES) * names, dtype=bool)
        for begin in range(0, len(rows.span), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            occurs[rows.category[part].astype(np.int64) * names + name_of_span[rows.span[part]]] = True
        known = np.flatnonzero(occurs)
        code_of = np.zeros(len(occurs), dtype=np.int16 if len(known) < SMALL else np.int32)
        code_of[known] = np.arange(len(known))
        codes: Values
        if isinstance(rows.category, Codes):
            codes = rows.category.beside(code_of, name_of_span, names)
        else:  # pieces of one span are of several categories
            codes = code_of[rows.category[:].astype(np.int64) * names + name_of_span[rows.span]]
        return codes, (known // names).astype(np.int8), (known % names).astype(np.int32)

    @cached_property
    def block_sums(self) -> BlockSums:
        """Sums of the spans by `groups`."""
        codes, category_of, _ = self.groups
        return BlockSums(self.rows, codes, len(category_of))

    @cached_property
    def counters(self) -> list[tuple[int, str, np.ndarray, np.ndarray]]:
        """Rank, name, times and values of every counter, by rank and name."""
        table = self.trace.counters
        if table.empty:
            return []
        order = table.sort_values(["rank", "name", "ts_ns"], kind="stable")
        names = order["name"].cat.categories
        rank, code = order["rank"].to_numpy(dtype=np.int64), order["name"].cat.codes.to_numpy()
        ts, value = order["ts_ns"].to_numpy(), order["value"].to_numpy()
        first = np.flatnonzero(np.concatenate(([True], (rank[1:] != rank[:-1]) | (code[1:] != code[:-1]))))
        last = np.append(first[1:], len(rank))
        return [
            (int(rank[begin]), str(names[code[begin]]), ts[begin:end], value[begin:end])
            for begin, end in zip(first, last, strict=True)
        ]


#: Codes below fit into two bytes.
SMALL: Final = 2**15
#: Positions that are looked at together.
_AT_ONCE: Final = 2**20
