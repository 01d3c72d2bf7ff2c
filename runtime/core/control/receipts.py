"""What each rank was told to do, and how much of it has done.

Ranks say with everything they ask for how many responses they have executed, so that in the steady state it costs one small
integer.  What they have not told, somebody may ask (`watch.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .messages import Response


@dataclass(slots=True)
class _Awaited:
    """Something that may be done once some ranks have come far enough."""

    counts: dict[int, int]
    """How far each of them has to come that has not yet."""
    action: Callable[[], None]


class Receipts:
    """Counts of responses by rank."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, ...], int] = {}
        self._last: dict[tuple[int, ...], Response] = {}
        self._done: dict[int, int] = {}
        self._awaited: list[_Awaited] = []

    def tell(self, ranks: tuple[int, ...], response: Response) -> None:
        """`ranks` are told to do something."""
        self._told[ranks] = self._told.get(ranks, 0) + 1
        self._last[ranks] = response

    def note(self, rank: int, done: int) -> None:
        """`rank` has done so much of what it was ever told."""
        self._done[rank] = done
        if self._awaited:
            for awaited in self._awaited:
                if done >= awaited.counts.get(rank, done + 1):
                    del awaited.counts[rank]
            finished = [awaited for awaited in self._awaited if not awaited.counts]
            self._awaited = [awaited for awaited in self._awaited if awaited.counts]
            for awaited in finished:
                awaited.action()

    def when_done(self, ranks: Sequence[int], action: Callable[[], None]) -> None:
        """Call `action` when these ranks have done all that they were told so far."""
        told = self.told()
        counts = {rank: told[rank] for rank in ranks if told.get(rank, 0) > self._done.get(rank, 0)}
        self._awaited.append(_Awaited(counts, action))

    def told(self) -> dict[int, int]:
        """How many responses each rank was told."""
        counts: dict[int, int] = {}
        for ranks, count in self._told.items():
            for rank in ranks:
                counts[rank] = counts.get(rank, 0) + count
        return counts

    def behind(self) -> dict[int, int]:
        """The ranks that have not done all they were told, as far as they have said, and how much they have done."""
        done = self._done
        return {rank: done.get(rank, 0) for rank, count in self.told().items() if count > done.get(rank, 0)}

    def last_of(self, rank: int) -> Response | None:
        """What `rank` was told last."""
        return next((response for ranks, response in reversed(self._last.items()) if rank in ranks), None)
