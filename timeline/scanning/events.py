"""Trace events as columns."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from .together import halves, together

_TIMES_AND_PLACES: Final = ("phase", "start", "duration", "args_start", "args_nbytes")


@dataclass(slots=True)
class Key:
    """An arg that was kept: where it is, and its value."""

    rows: np.ndarray
    """Events that have it, ascending."""
    numbers: np.ndarray
    """Integers, or numbers into `texts`; in as few bytes as hold them."""
    texts: list[str]

    def text_of(self, row: int, default: str = "") -> str:
        """The text that an event has; `default` without."""
        position = int(np.searchsorted(self.rows, row))
        if position == len(self.rows) or self.rows[position] != row:
            return default
        return self.texts[int(self.numbers[position])]

    def texts_of(self, rows: np.ndarray, default: str = "") -> list[str]:
        """The texts of many events, as `text_of` gives them.

        Args:
            rows: integers, in any order.
        """
        texts = [*self.texts, default]  # the last one is number -1
        return [texts[number] for number in self.numbers_of(rows, -1).tolist()]

    def numbers_of(self, rows: np.ndarray, default: int) -> np.ndarray:
        """The numbers of many events, `default` where one has none: int64.

        Args:
            rows: integers, in any order.
        """
        if not len(self.rows):
            return np.full(len(rows), default, np.int64)
        position = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        return np.where(self.rows[position] == rows, self.numbers[position].astype(np.int64), default)


@dataclass(slots=True)
class Events:
    """The events of a file as columns, in file order."""

    phase: np.ndarray
    """ASCII code of `ph`, 0 if it has none."""
    name: np.ndarray
    category: np.ndarray
    process: np.ndarray
    thread: np.ndarray
    """These three in as few bytes as hold them: to count with them, take them as int64."""
    id: np.ndarray
    """-1 without an id; empty unless ids were asked for."""
    start: np.ndarray
    """`ts` in ns."""
    duration: np.ndarray
    """`dur` in ns, 0 without."""
    args_start: np.ndarray
    """Offset of the args in the unpacked file; -1 without, -2 - k for `own_args[k]`."""
    args_nbytes: np.ndarray
    texts: dict[str, list[Any]]
    """What the numbers of `name`, `category`, `process`, `thread` and `id` stand for."""
    keys: dict[str, Key]
    own_args: list[bytes]
    """Args of events that had to be read by themselves."""
    before: bytes
    """The file up to the array of events, and behind it."""
    after: bytes
    nbytes: int

    def __len__(self) -> int:
        return len(self.phase)

    def thread_names(self) -> dict[tuple[int, int], str]:
        """Names that the trace gives to threads, by numbers of process and thread; needs the arg `name`."""
        names = self.keys["name"]
        found = {}
        for row in np.flatnonzero(self.phase == ord("M")).tolist():
            if self.texts["name"][self.name[row]] == "thread_name" and (text := names.text_of(row)):
                found[int(self.process[row]), int(self.thread[row])] = text
        return found

    def keep(self, chosen: np.ndarray) -> None:
        """Leave out all other events, in place: one column after the other, so that one only is there twice.

        Args:
            chosen: bool, of every event whether it stays.
        """
        if chosen.all():
            return
        for name in (*_TIMES_AND_PLACES, *self.texts):
            column = getattr(self, name)
            if len(column):  # ids may not be there
                setattr(self, name, column.compress(chosen))
        number = np.cumsum(chosen, dtype=np.uint32)
        for key in self.keys.values():
            stays = chosen.take(key.rows)
            key.numbers = key.numbers.compress(stays)
            key.rows = number.take(key.rows.compress(stays)) - np.uint32(1)

    def shift(self, ns: int) -> None:
        """Add to the times of all events, in place where nobody else has them."""
        shifted = self.start if self.start.flags.writeable else np.empty_like(self.start)

        def shift(part: slice) -> None:
            np.add(self.start[part], ns, out=shifted[part])

        together(len(self), *(partial(shift, part) for part in halves(len(self))))
        self.start = shifted

    def dense(self, key: str, default: int = -1) -> np.ndarray:
        """A kept integer for every event, `default` where an event does not have it."""
        found = self.keys[key]
        values = np.full(len(self), default, np.int64)
        values[found.rows] = found.numbers
        return values
