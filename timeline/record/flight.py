"""The flight recorder: the newest of a run is always recorded, and set aside when something is wrong (HOROVOD_FLIGHT_RECORDER).

Each rank writes a timeline of bounded size into `FOLDER/recording`.  Setting aside copies what is there into a folder of its own,
on all ranks under one name.  A run that ends well, and in which nothing was set aside, leaves nothing behind.
"""

import json
import logging
import re
import shutil
import time
from collections import deque
from pathlib import Path
from typing import Final

from .shard_parts import Keep
from .shard_writer import ShardWriter

RECORDING: Final = "recording"
"""Folder of what is being recorded."""
WHY: Final = "why.json"
"""File beside the timelines that says why they were set aside."""

#: How much of each rank is recorded, unless HOROVOD_TIMELINE_KEEP says something else.
DEFAULT_KEEP: Final = Keep(64e6, "bytes", "64MB")

#: So many times is enough to find out what is wrong.
MAX_SET_ASIDE: Final = 20
#: How long a copy waits for the newest records.
FLUSH_TIMEOUT_S: Final = 2.0

_log = logging.getLogger("tlkit.timeline")


def path_in(folder: str | Path, restarts: int = 0) -> Path:
    """Where rank 0 records: the name that the runtime derives those of the other ranks from."""
    name = f"t.restart{restarts}.json" if restarts else "t.json"
    return Path(folder) / RECORDING / name


class FlightRecorder:
    """The recording of one rank."""

    def __init__(self, folder: str | Path, writer: ShardWriter, rank: int) -> None:
        self._folder = Path(folder)
        self._writer = writer
        self._rank = rank
        self._set_aside: list[str] = []

    def set_aside(self, name: str, why: str) -> Path | None:
        """Copy what is recorded; never fails, since training goes on.

        Args:
            name: of the folder, the same on all ranks.
            why: a sentence without a full stop.

        Returns:
            Where it is; None if it is not.
        """
        if name in self._set_aside or len(self._set_aside) >= MAX_SET_ASIDE:
            return None
        self._set_aside.append(name)
        target = self._folder / (re.sub(r"[^\w.-]", "_", name).lstrip(".") or "unnamed")
        try:
            target.mkdir(parents=True, exist_ok=True)
            self._writer.flush(FLUSH_TIMEOUT_S)
            for path in self._files():
                shutil.copyfile(path, target / path.name)
            if self._rank == 0:
                told = {"why": why, "unix_ns": time.time_ns()}
                (target / WHY).write_text(json.dumps(told), encoding="utf-8")
        except OSError as error:
            _log.warning("the flight recorder cannot write %s: %s", target, error.strerror)
            return None
        if self._rank == 0:
            _log.warning("%s: the last steps of all ranks are in %s (tl-analyze %s)", why, target, target)
        return target

    def _files(self) -> list[Path]:
        """Files of this rank, oldest first; the last is being written."""
        first = self._writer.path
        parts = [path for path in first.parent.glob(f"{first.stem}.part*{first.suffix}") if path.is_file()]
        return [path for path in (first, *sorted(parts)) if path.exists()]

    def finish(self, error: str) -> None:
        """The recording has ended.

        Args:
            error: what the program or the job ends with; "" if all is well.  Then there is nothing to look at.
        """
        if error:
            if self._rank == 0 or not (self._writer.path.parent / WHY).exists():
                self._tell_end(error)
            return
        for path in self._files():
            path.unlink(missing_ok=True)
        try:
            self._writer.path.parent.rmdir()
        except OSError:  # other ranks are not done yet
            return

    def _tell_end(self, error: str) -> None:
        folder = self._writer.path.parent
        try:
            told = {"why": f"the job ended: {error}", "unix_ns": time.time_ns()}
            (folder / WHY).write_text(json.dumps(told), encoding="utf-8")
        except OSError as failure:
            _log.debug("%s: %s", folder, failure.strerror)
        if self._rank == 0:
            _log.warning("the last steps of all ranks are in %s (tl-analyze %s)", folder, folder)


class SlowSteps:
    """Notices that steps have become slower than they were."""

    #: Steps that are compared as one, and how long they take at least: an interrupt makes twenty short ones slow.
    GROUP: Final = 20
    GROUP_NS: Final = 2_000_000_000
    #: How much longer a group has to be, and how many have to be known.
    RATIO: Final = 1.2
    GROUPS_KNOWN: Final = 3
    #: Groups that make the run's own usual step.
    MAX_GROUPS: Final = 200

    def __init__(self) -> None:
        self._group: list[int] = []
        """Durations of the newest steps, ns."""
        self._means: deque[float] = deque(maxlen=self.MAX_GROUPS)
        self._is_slow = False

    def add(self, duration_ns: int) -> str:
        """Take note of a step; what is to be said of it: something when a slow stretch has begun."""
        self._group.append(duration_ns)
        if len(self._group) < self.GROUP or sum(self._group) < self.GROUP_NS:
            return ""
        count, mean = len(self._group), sum(self._group) / len(self._group)
        self._group.clear()
        known = sorted(self._means)
        self._means.append(mean)
        if len(known) < self.GROUPS_KNOWN:
            return ""
        usual = known[len(known) // 2]
        was_slow, self._is_slow = self._is_slow, mean > self.RATIO * usual
        if not self._is_slow or was_slow:
            return ""
        return f"the last {count} steps took {mean / 1e6:.1f} ms each, {mean / usual - 1:.0%} more than usual"


def why_of(folder: Path) -> str:
    """Why the timelines in a folder were set aside; "" if no reason is recorded."""
    try:
        told = json.loads((folder / WHY).read_bytes()[:10_000])
    except (OSError, ValueError, RecursionError):
        return ""
    why = told.get("why") if isinstance(told, dict) else None
    return why[:500] if isinstance(why, str) else ""
