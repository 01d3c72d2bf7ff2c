"""Which lines of the user's code the parts of a step are spent in, out of looks at the training thread now and then.

A look says where the training thread was at one moment; which part of the step that was, the spans around it say.  Of the looks
in a part each counts for the time since the rank's look before, and together they stand for the part's time: nothing of a part is
counted that its spans do not show.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ...timeline.model.code_spans import OWN, CodeSpan
from .arrays import Floats, Integers, IntMatrix, Mask
from .breakdown import EXPOSED, PARTS

#: Fewer looks say nothing.
MIN_LOOKS: Final = 5
#: A line with so much of what is looked for is where it is.
MIN_SHARE: Final = 0.4
#: Ranks whose shares of looks differ by more deviations do differ.
CLEAR: Final = 3.0
#: Not worth a word if less often.
MANY_TIMES: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A line, or a whole function, that a part of the step is spent in."""

    file: str
    function: str
    lines: tuple[int, int]
    """The first and the last; the same for one line."""
    text: str
    """Of the line, "" where it is unknown or there are several."""
    times: int
    """How often the line runs in a step, or more often; 0 where that was not counted, or there are several lines."""
    graph_nodes: int
    """How many operations it adds to autograd's graph in a step, which backward goes through; 0 as with `times`."""
    of_graph_nodes: int
    """How many all of the step adds."""
    times_at_first: int
    """How often the line ran when it was counted first; 0 as with `times`."""
    library: str
    """Which it calls for most of its time; OWN if none."""
    mean_ns: float
    """Of a step."""
    share: float
    """Of what was looked for."""
    looks: int

    @property
    def where(self) -> str:
        """`train.py:57, in augment(), 400 times a step: x = slow(x)`."""
        first, last = self.lines
        line = f"{self.file}:{first}" if first == last else f"{self.file}:{first} to {last}"
        function = "" if self.function.startswith("<") else f", in {self.function}()"
        times = f", {self.times:,} times a step" if self.times >= MANY_TIMES else ""
        return f"{line}{function}{times}" + (f": {self.text}" if self.text else "")


@dataclass(frozen=True, kw_only=True)
class CodeLooks:
    """The looks within the analysed steps: n of them."""

    row: Integers
    """int64[n], of the steps' ranks."""
    step: Integers
    """int64[n], column of the steps."""
    part: Integers
    """int64[n], of breakdown.PARTS."""
    ns: Floats
    """float64[n], what each stands for."""
    place: Integers
    """int64[n], of `places`."""
    is_input: Mask
    """bool[n], whether the loop was making its next batch, outside of any data loader."""
    places: tuple[CodeSpan, ...]
    texts: tuple[str, ...]
    """Of the lines of `places`."""
    counts: tuple[tuple[int, int, int, int], ...]
    """How often each of the lines runs in a step, what it adds to autograd's graph, what all do, and how often it ran when it was
    counted first; 0 where nobody counted."""
    part_ns: dict[str, IntMatrix]
    """What the parts take: int64[rank, step]."""

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def libraries(self) -> tuple[str, ...]:
        """Of each place."""
        return tuple(place.library for place in self.places)

    def chosen(
        self, part: str, rows: Sequence[int], steps: Mask | None = None, *, is_input: bool | None = None
    ) -> Mask:
        """Which looks are in a part, on some ranks, in some steps, and at the making of batches or not: bool[n]."""
        wanted: Mask = (self.part == PARTS.index(part)) & np.isin(self.row, rows)
        if is_input is not None:
            wanted &= self.is_input == is_input
        return wanted if steps is None else wanted & steps[self.step]

    def spent(self, chosen: Mask, part: str, rows: Sequence[int], steps: Mask | None = None) -> Floats:
        """The mean of a step that each place has of a part, of ranks and steps: float[place], ns; of the chosen looks alone."""
        took = self.part_ns[part][list(rows)]
        mean_ns = float((took if steps is None else took[:, steps]).mean()) if took.size else 0.0
        weights = np.bincount(self.place[chosen], self.ns[chosen], len(self.places))
        all_ns = float(self.ns[self.chosen(part, rows, steps)].sum())
        found: Floats = weights / max(all_ns, 1.0) * mean_ns
        return found

    def input_ratio(self, part: str, rows: Sequence[int], steps: Mask | None = None) -> Floats:
        """How much of a part goes to making batches in the loop itself: float[rows], 0 to 1; 0 of too few looks."""
        chosen = self.chosen(part, rows, steps)
        if int(chosen.sum()) < MIN_LOOKS:
            return np.zeros(len(rows))
        return self._ratio_by_rank(chosen, self.is_input)[list(rows)]

    def inside_ratio(
        self, part: str, rows: Sequence[int], libraries: frozenset[str], beside: Sequence[str], as_long: float
    ) -> Floats:
        """How much of a part is inside of libraries, at lines where other parts are spent for longer than a share of it.

        Args:
            as_long: that share.

        Returns:
            float[rows], 0 to 1.
        """
        lines = [(place.file, place.line, place.function) for place in self.places]
        numbers: dict[tuple[str, int, str], int] = {}
        line_of = np.array([numbers.setdefault(line, len(numbers)) for line in lines], np.int64)[self.place]
        others = np.isin(self.part, [PARTS.index(name) for name in beside])
        elsewhere, here = (
            np.bincount(line_of[mask], self.ns[mask], len(numbers)) for mask in (others, self.part == PARTS.index(part))
        )
        is_shared = elsewhere > as_long * here
        wanted = np.array([place.library in libraries for place in self.places], bool)[self.place] & is_shared[line_of]
        return self._ratio_by_rank(self.chosen(part, rows), wanted)[list(rows)]

    def library_ratio(self, part: str, library: str) -> Floats:
        """How much of a part each rank is inside of a library, 0 to 1; 0 of too few looks: float[rank]."""
        inside = self.part == PARTS.index(part)
        wanted = np.array([name == library for name in self.libraries], bool)[self.place]
        ratio = self._ratio_by_rank(inside, wanted)
        looks = np.bincount(self.row[inside], minlength=len(ratio))
        return np.where(looks >= MIN_LOOKS, ratio, 0.0)

    def spent_by_rank(self, part: str, places: Sequence[int]) -> Floats:
        """The mean of a step that each rank has of a part at some places, ns: float[rank]."""
        inside = self.part == PARTS.index(part)
        found: Floats = self._ratio_by_rank(inside, np.isin(self.place, list(places))) * self.part_ns[part].mean(axis=1)
        return found

    def _ratio_by_rank(self, chosen: Mask, wanted: Mask) -> Floats:
        """How much of the chosen looks the wanted ones stand for: float[rank].

        The same for all ranks where their ratios differ by no more than chance, which is much of a few looks.
        """
        count = max(len(took) for took in self.part_ns.values())
        looks = np.bincount(self.row[chosen], minlength=count)
        total = np.bincount(self.row[chosen], self.ns[chosen], count)
        mine = np.bincount(self.row[chosen], (self.ns * wanted)[chosen], count)
        ratio: Floats = mine / np.maximum(total, 1.0)
        of_all = float(mine.sum()) / max(float(total.sum()), 1.0)
        deviation = np.sqrt(of_all * (1 - of_all) / np.maximum(looks, 1))
        is_chance = bool((np.abs(ratio - of_all) <= CLEAR * deviation)[looks > 0].all())
        return np.full(count, of_all) if is_chance else ratio

    def hottest(
        self,
        part: str,
        rows: Sequence[int],
        *,
        steps: Mask | None = None,
        beside: Sequence[int] = (),
        beside_steps: Mask | None = None,
        libraries_left_out: frozenset[str] = frozenset(),
        is_input: bool | None = None,
    ) -> Place | None:
        """Where most of a part is spent; None if nowhere in particular, or if that cannot be told.

        Args:
            part: of the step.
            rows: ranks, by row.
            steps: bool[step]; None for all.
            beside: of ranks that are usual: what they spend at a place is not counted.
            beside_steps: the same of steps that are usual, bool[step], on the same ranks.
            libraries_left_out: looks inside of these are not counted.
            is_input: only looks at the making of batches, or only the others.
        """
        chosen = self.chosen(part, rows, steps, is_input=is_input)
        if int(chosen.sum()) < MIN_LOOKS:
            return None
        spent = self.spent(chosen, part, rows, steps)
        if beside:
            spent = np.maximum(spent - self.spent(self.chosen(part, beside), part, beside), 0.0)
        if beside_steps is not None:
            usual = self.spent(self.chosen(part, rows, beside_steps), part, rows, beside_steps)
            spent = np.maximum(spent - usual, 0.0)
        total = float(spent.sum())
        if libraries_left_out:
            spent = np.where(np.isin(self.libraries, list(libraries_left_out)), 0.0, spent)
        counts = np.bincount(self.place[chosen], minlength=len(self.places))
        return self._most(spent, counts, total)

    def lines(self) -> list[tuple[str, Place]]:
        """All lines with the part of the ranks' own work that each is in, over all ranks; largest first."""
        rows = sorted(set(self.row.tolist()))
        parts = [PARTS[number] for number in np.unique(self.part).tolist() if PARTS[number] not in EXPOSED]
        found = [(part, place) for part in parts for place in self.lines_of(part, rows)]
        return sorted(found, key=lambda pair: -pair[1].mean_ns)

    def lines_of(self, part: str, rows: Sequence[int], *, without: frozenset[str] = frozenset()) -> list[Place]:
        """The lines that a part is spent in on some ranks, with their share of the step; none of too few looks.

        Args:
            part: of the step.
            rows: ranks, by row.
            without: libraries, looks inside of which are not counted.
        """
        chosen = self.chosen(part, rows)
        if int(chosen.sum()) < MIN_LOOKS:
            return []
        step_ns = float(sum(took[list(rows)].mean() for took in self.part_ns.values()))
        spent = np.where(np.isin(self.libraries, list(without)), 0.0, self.spent(chosen, part, rows))
        counts = np.bincount(self.place[chosen], minlength=len(self.places))
        keys = [(place.file, place.line, place.function) for place in self.places]
        return [self._place(members, spent, counts, step_ns) for members in _grouped(keys, np.flatnonzero(spent > 0))]

    def _most(self, spent: Floats, counts: Integers, total: float) -> Place | None:
        """The line with most of it, else the function."""
        there = np.flatnonzero(spent > 0)
        by_line = [(place.file, place.line, place.function) for place in self.places]
        by_function = [(place.file, 0, place.function) for place in self.places]
        for keys in (by_line, by_function):
            groups = _grouped(keys, there)
            if not groups:
                return None
            place = self._place(max(groups, key=lambda members: float(spent[members].sum())), spent, counts, total)
            is_told = place.lines[0] == place.lines[1] or not place.function.startswith("<module")
            if is_told and place.share >= MIN_SHARE and place.looks >= MIN_LOOKS:
                return place
        return None

    def numbers(self, place: Place) -> list[int]:
        """Of `places`, those of a line."""
        key = (place.file, place.lines[0], place.function)
        return [number for number, one in enumerate(self.places) if (one.file, one.line, one.function) == key]

    def _place(self, members: list[int], spent: Floats, counts: Integers, total: float) -> Place:
        lines = [self.places[member].line for member in members]
        largest = max(members, key=lambda member: float(spent[member]))
        mean_ns = float(spent[members].sum())
        is_line = min(lines) == max(lines)
        in_library = float(spent[largest]) > mean_ns / 2 and is_line
        counts_of = [self.counts[member] for member in members] if is_line else [(0, 0, 0, 0)]
        times, graph_nodes, of_graph_nodes, times_at_first = (max(column) for column in zip(*counts_of, strict=True))
        return Place(
            file=self.places[largest].file,
            function=self.places[largest].function,
            lines=(min(lines), max(lines)),
            text=self.texts[largest] if is_line else "",
            times=times,
            graph_nodes=graph_nodes,
            of_graph_nodes=of_graph_nodes,
            times_at_first=times_at_first,
            library=self.places[largest].library if in_library else OWN,
            mean_ns=mean_ns,
            share=mean_ns / max(total, 1.0),
            looks=int(counts[members].sum()),
        )


def _grouped(keys: Sequence[tuple[str, int, str]], numbers: np.ndarray) -> list[list[int]]:
    """The numbers of equal keys together."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    for number in numbers.tolist():
        groups.setdefault(keys[number], []).append(number)
    return list(groups.values())
