"""A timeline that does not grow without end: the newest of it stays (HOROVOD_TIMELINE_KEEP).

A shard is written in parts, each of half of what is kept: `t.json`, `t.part2.json`, `t.part3.json` and so on.  When a part
begins, the one before the last is dropped.  The first file keeps its name, by which the run is found, and from then on tells how
long the steps of the dropped parts took.
"""

import os
import re
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .sampled_format import STEPS_EVENT
from .shard_file import close_shard
from .shard_format import ShardFormat

#: Units of a limit, and what they are counted in.
_UNITS: Final = {
    "kb": ("bytes", 10**3),
    "mb": ("bytes", 10**6),
    "gb": ("bytes", 10**9),
    "tb": ("bytes", 10**12),
    "steps": ("steps", 1),
    "s": ("seconds", 1),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
    "d": ("seconds", 86400),
}
_LIMIT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
#: Steps that one event tells.
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a timeline stays, of each rank."""

    amount: float
    unit: str
    """`bytes`, `steps` or `seconds`."""
    said: str
    """As the user has put it."""


DEFAULT: Final = Keep(2e9, "bytes", "2GB")


def parse_keep(text: str) -> Keep | None:
    """`2GB`, `500steps`, `30min`; None for `all`.

    Raises:
        ValueError: it is none of these.

    >>> parse_keep("30min")
    Keep(amount=1800.0, unit='seconds', said='30min')
    """
    wish = text.strip().lower()
    if wish == "all":
        return None
    match = _LIMIT.fullmatch(wish)
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise ValueError(f"{text} is no size (2GB), number of steps (500steps) or time (30min), and not all")
    unit, factor = _UNITS[match[2]]
    return Keep(float(match[1]) * factor, unit, text.strip())


def part_path(first: Path, number: int) -> Path:
    """Where a part is written.

    >>> part_path(Path("t.rank1.json"), 3).name
    't.rank1.part3.json'
    """
    return first if number == 1 else first.with_name(f"{first.stem}.part{number}{first.suffix}")


class Parts:
    """The parts of a shard that is being written.  Called by the writer's thread."""

    def __init__(self, first: Path, keep: Keep, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with the first part.

        Args:
            clock: seconds.
        """
        self._first = first
        self._keep = keep
        self._clock = clock
        self.number = 1
        self._began_s = clock()
        self._descriptor = -1
        """Of the first file, once another part has begun."""
        self._steps: dict[int, array[int]] = {1: array("q")}
        """By part: number, start and duration (ns) of each step."""

    def step(self, number: int, start_ns: int, end_ns: int) -> None:
        """A step is in this part."""
        self._steps[self.number].extend((number, start_ns, end_ns - start_ns))

    def is_full(self, nbytes: int) -> bool:
        """Whether another part has to begin.

        Args:
            nbytes: what the file of this one has.
        """
        used = {
            "bytes": nbytes,
            "steps": len(self._steps[self.number]) // 3,
            "seconds": self._clock() - self._began_s,
        }[self._keep.unit]
        return used >= self._keep.amount / 2

    def next(self, descriptor: int) -> Path:
        """Begin another part; returns where it is written.

        Args:
            descriptor: of the part before, which is closed.  The first one stays open, so no other process takes it.
        """
        if self.number == 1:
            self._descriptor = descriptor
        else:
            close_shard(descriptor)
        self._steps[self.number + 1] = array("q")
        self.number += 1
        self._began_s = self._clock()
        return part_path(self._first, self.number)

    def drop(self, form: ShardFormat) -> str:
        """Remove what is older than the last two parts, but for how long its steps took.

        Returns:
            What is to be said of it: something the first time.

        Raises:
            OSError: the files cannot be changed.
        """
        dropped = self.number - 2
        if dropped < 1:
            return ""
        told = _tell(self._steps.pop(dropped), form)
        if dropped == 1:
            # What is there already is cut off last: at any moment the file begins as a shard does.
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._write("[\n" + "".join(form.head()) + told)
            os.ftruncate(self._descriptor, os.lseek(self._descriptor, 0, os.SEEK_CUR))
            return (
                f"the timeline {self._first} keeps the newest {self._keep.said} of each rank; older events are dropped from "
                "now on, except the length of each step (HOROVOD_TIMELINE_KEEP=all keeps everything)"
            )
        part_path(self._first, dropped).unlink(missing_ok=True)
        self._write(told)
        return ""

    def close(self, form: ShardFormat) -> None:
        """Finish the first file, if it is still open.

        Raises:
            OSError: it cannot be written.
        """
        descriptor = self._descriptor
        if descriptor < 0:
            return
        try:
            if self.number > 2:  # noqa: PLR2004  else it was finished as a part
                following = form.metadata("tlkit_continues", {"part": self.number - 1})
                self._write(following.removesuffix(",\n") + "\n]\n")
        finally:
            self._descriptor = -1
            close_shard(descriptor)

    def _write(self, text: str) -> None:
        left = memoryview(text.encode())
        while left:
            left = left[os.write(self._descriptor, left) :]


def _tell(steps: "array[int]", form: ShardFormat) -> str:
    """Events that say how long steps took."""
    lines = []
    rows: list[list[int]] = []
    first, began_ns, reached_us = 0, 0, 0
    for place in range(0, len(steps), 3):
        number, start_ns, length_ns = steps[place : place + 3]
        if rows and (number != first + len(rows) or len(rows) >= _AT_ONCE):
            lines.append(form.metadata(STEPS_EVENT, {"first": first, "parts": [], "us": rows}, at_ns=began_ns))
            rows = []
        if not rows:
            first, began_ns, reached_us = number, start_ns, 0
        start_us, length_us = (start_ns - began_ns) // 1000, length_ns // 1000
        rows.append([start_us - reached_us, length_us])
        reached_us = start_us + length_us
    if rows:
        lines.append(form.metadata(STEPS_EVENT, {"first": first, "parts": [], "us": rows}, at_ns=began_ns))
    return "".join(lines)
