"""A table of spans: those that somebody asks for, in an order, a page at a time."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...collector.model.intervals import Intervals, total_within
from ...timeline.commands.arguments import clean
from ...timeline.errors import UsageError
from ...timeline.vocabulary import STEP, Category, LaneKind
from . import search
from .run import Run

#: Columns that may be sorted by.
ORDERS: Final = ("start", "duration", "name", "lane", "rank", "step", "exposed")
#: Rows of a page, and the last row that can be asked for.
MAX_PAGE: Final = 500
MAX_OFFSET: Final = 100_000
#: Characters of a name that are shown.
MAX_NAME: Final = 400
#: Answers that are kept, so that the next page costs nothing.
_KEPT: Final = 4
#: Categories whose time can be exposed.
_COMMUNICATION: Final = frozenset(map(str, (Category.NEGOTIATE, Category.QUEUE, Category.FUSION, Category.COLLECTIVE)))


@dataclass(frozen=True, slots=True)
class Question:
    """Which spans, in which order."""

    wanted: str = ""
    """Text in name or lane, "" for all."""
    rank: int | None = None
    step: int | None = None
    window: tuple[int, int] | None = None
    """Spans that reach into this stretch of time."""
    category: str = ""
    order: str = "start"
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Spans in the order asked for."""

    count: int
    by_rank: dict[int, int]
    spans: np.ndarray
    """Numbers of the first ones: as many as could be asked for so far."""


class Table:
    """Answers questions about the spans of a run."""

    def __init__(self, run: Run) -> None:
        """What was sorted before is kept with the run."""
        self._run = run
        self._kept: dict[Question, Answer] = run.kept

    def page(self, question: Question, offset: int, limit: int) -> Answer:
        """Spans from `offset` on.

        Raises:
            UsageError: the question makes no sense.
        """
        if question.order not in ORDERS:
            raise UsageError(f"order has to be one of {', '.join(ORDERS)}")
        if not 0 <= offset <= MAX_OFFSET or not 1 <= limit <= MAX_PAGE:
            raise UsageError(f"offset is at most {MAX_OFFSET}, limit at most {MAX_PAGE}")
        needed = offset + limit
        with self._run.lock:
            kept = self._kept.get(question)
            if kept is None or len(kept.spans) < min(needed, kept.count):
                kept = self._answer(question, max(2 * needed, 2 * MAX_PAGE))
                self._kept[question] = kept
                while len(self._kept) > _KEPT:
                    del self._kept[next(iter(self._kept))]
        return Answer(kept.count, kept.by_rank, kept.spans[offset:needed])

    def _answer(self, question: Question, most: int) -> Answer:
        found = self._matching(question)
        ranks = self._run.trace.spans["rank"].to_numpy()
        of_each = np.bincount(ranks if found is None else ranks[found], minlength=1)
        count = len(ranks) if found is None else len(found)
        by_rank = {int(rank): int(of_each[rank]) for rank in np.flatnonzero(of_each)}
        key = self._key(question, found)
        if count > most:
            # Only what is shown is sorted; of equals those in front.
            least = np.argpartition(key, most - 1)[:most]
            found = np.sort(least if found is None else found[least])
            key = self._key(question, found)
        order = np.argsort(key, kind="stable")
        return Answer(count, by_rank, order if found is None else found[order])

    def _matching(self, question: Question) -> np.ndarray | None:
        """Numbers of the spans; None for all."""
        run, spans = self._run, self._run.trace.spans
        found: np.ndarray | None = None
        if question.step is not None or question.window is not None:
            found = _in_windows(run, question)
        for mask in self._masks(question):
            found = np.flatnonzero(mask) if found is None else found[mask[found]]
        if question.rank is not None:
            rank = spans["rank"].to_numpy()
            found = np.flatnonzero(rank == question.rank) if found is None else found[rank[found] == question.rank]
        return found

    def _masks(self, question: Question) -> list[np.ndarray]:
        spans, masks = self._run.trace.spans, []
        if question.wanted:
            mask = search.find(self._run, question.wanted)
            masks.append(np.zeros(len(spans), dtype=bool) if mask is None else mask)
        if question.category:
            masks.append((spans["category"] == question.category).to_numpy())
        return masks

    def _key(self, question: Question, found: np.ndarray | None) -> np.ndarray:
        """What to sort by, ascending."""
        spans = self._run.trace.spans

        def column(name: str) -> np.ndarray:
            values: np.ndarray = spans[name].to_numpy()
            return values if found is None else values[found]

        if question.order in {"name", "lane"}:
            words = spans[question.order].cat.categories
            place = np.empty(max(len(words), 1), dtype=np.int64)
            place[np.argsort(np.array([str(word).lower() for word in words]), kind="stable")] = np.arange(len(words))
            codes = spans[question.order].cat.codes.to_numpy()
            key = place[codes if found is None else codes[found]]
        elif question.order == "exposed":
            key = exposed_ns(self._run, found)
        elif question.order == "step":
            key = steps_of(self._run, column("rank"), column("start_ns"))
        else:
            key = column({"start": "start_ns", "duration": "dur_ns", "rank": "rank"}[question.order])
        return -key.astype(np.int64) if question.descending else key

    def describe(self, numbers: np.ndarray) -> list[dict[str, Any]]:
        """What a table shows of some spans."""
        run = self._run
        spans = run.trace.spans.iloc[numbers]
        steps = steps_of(run, spans["rank"].to_numpy(), spans["start_ns"].to_numpy())
        exposed = exposed_ns(run, numbers)
        return [
            {
                "number": int(number),
                "name": name_of(str(row["name"]), int(step)),
                "lane": clean(str(row["lane"]))[:MAX_NAME],
                "category": str(row["category"]),
                "rank": int(row["rank"]),
                "step": int(step),
                "start_ns": int(row["start_ns"]),
                "dur_ns": int(row["dur_ns"]),
                "exposed_ns": int(waited),
            }
            for number, row, step, waited in zip(numbers, spans.to_dict("records"), steps, exposed, strict=True)
        ]


def name_of(name: str, step: int) -> str:
    """A span's name as pages show it; a step with its number."""
    shown = f"{name} {step}" if name == STEP and step >= 0 else name
    return clean(shown if len(shown) <= MAX_NAME else shown[: MAX_NAME // 2] + "…" + shown[-MAX_NAME // 2 :])


def steps_of(run: Run, ranks: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """In which step of its rank each moment lies: int64[n], -1 for none."""
    found = np.full(len(ranks), -1, dtype=np.int64)
    for rank in np.unique(ranks).tolist():
        if rank not in run.steps_by_rank:
            continue
        numbers, begin, end = run.steps_by_rank[rank]
        mine = np.flatnonzero(ranks == rank)
        place = np.searchsorted(begin, starts[mine], side="right") - 1
        inside = (place >= 0) & (starts[mine] < end[np.maximum(place, 0)])
        found[mine[inside]] = numbers[place[inside]]
    return found


def exposed_ns(run: Run, numbers: np.ndarray | None) -> np.ndarray:
    """How long the rank waited for communication while each span, if it is one of communication, was under way: int64[n]."""
    spans = run.trace.spans
    kinds = [str(kind) for kind in spans["lane_kind"].cat.categories]
    categories = [str(name) for name in spans["category"].cat.categories]
    of_kind = np.array([kind in {LaneKind.COMMUNICATION, LaneKind.TENSOR} for kind in kinds] or [False])
    of_category = np.array([name in _COMMUNICATION for name in categories] or [False])
    kind, category = spans["lane_kind"].cat.codes.to_numpy(), spans["category"].cat.codes.to_numpy()
    rank, start, length = (spans[name].to_numpy() for name in ("rank", "start_ns", "dur_ns"))
    if numbers is not None:
        kind, category, rank, start, length = (each[numbers] for each in (kind, category, rank, start, length))
    found = np.zeros(len(rank), dtype=np.int64)
    chosen = np.flatnonzero(of_kind[kind] & of_category[category])
    ranks = rank[chosen]
    for number in np.unique(ranks).tolist():
        mine = chosen[ranks == number]
        moments: Intervals = run.exposed_of(number)
        found[mine] = total_within(moments, start[mine], start[mine] + length[mine])
    return found


def _in_windows(run: Run, question: Question) -> np.ndarray:
    """Spans in a step of their rank, or in a stretch of time: numbers, ascending."""
    rows = run.rows
    bounds: dict[int, tuple[int, int]] = {}
    if question.step is not None:
        for rank, (numbers, begin, end) in run.steps_by_rank.items():
            at = np.flatnonzero(numbers == question.step)
            if len(at):
                bounds[rank] = (int(begin[at[0]]), int(end[at[0]]))
    found: list[tuple[int, int, int]] = []
    for row, rank in enumerate(rows.ranks.tolist()):
        if question.rank is not None and rank != question.rank:
            continue
        low, high = bounds.get(rank, (0, 0)) if question.step is not None else (question.window or (0, 0))
        if question.step is not None and question.window is not None:
            low, high = max(low, question.window[0]), min(high, question.window[1])
        if high > low:
            found.append((row, low, high))
    chosen, lows, highs = np.array(found, dtype=np.int64).reshape(-1, 3).T
    places = zip(*rows.all_within(chosen, lows, highs), strict=True)
    parts = [rows.span[first:last] for first, last in places]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
