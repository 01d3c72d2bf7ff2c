"""Shards that grow by sums of steps: what has come is read, and not what was read before.

A rank that records sums writes a line every two seconds, and a thousand ranks are looked at every few: to read their shards from
the beginning each time would take longer than to analyse them.  What has come is taken as it is only if it is nothing but such
lines, one behind the other; a shard in which there is anything else, or that is not what it was, is read anew.
"""

import copy
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from ...timeline.formats.tlkit import join, scan_shards
from ...timeline.formats.tlkit_shard import Shard
from ...timeline.model.trace import Trace
from ...timeline.read.json_events import args_of, nanoseconds
from ...timeline.read.source import Source
from ...timeline.record.sampled_format import STEPS_EVENT
from ...timeline.scanning.odd import decode_one
from .window import copy_window

#: Bytes of the end of a shard that is read anew; one event has 20 KB at most.
_WINDOW_NBYTES: Final = 24 * 1024
#: Steps of a shard that are kept, in terms of those that are looked at: ranks may be as many apart.
_KEPT: Final = 4
#: Bytes before what has come that have to be what they were.
_BEFORE_NBYTES: Final = 64
_LINE: Final = b'{"name":"%s","ph":"M",' % STEPS_EVENT.encode()
_MAX_STEP: Final = 2**62


@dataclass(slots=True)
class _Known:
    """A shard as far as it was read."""

    shard: Shard
    inode: int
    offset: int
    """Where the first line begins that was not read."""
    before: bytes
    """What the file holds in front of it."""
    size: int


class _AnewError(Exception):
    """What has come is not only sums."""


class GrowingSums:
    """The newest steps of a run, of which nothing but sums is recorded."""

    def __init__(self, newest: int) -> None:
        """Begin without shards.

        Args:
            newest: so many steps are looked at.
        """
        self._newest = newest
        self._known: dict[Path, _Known] = {}
        self.is_cut = False
        """Whether the trace that was read last has not all steps of the shards."""

    def read(self, sizes: Mapping[Path, int]) -> Trace | None:
        """The trace of these shards; None if they are not those of one run, each of another rank.

        Args:
            sizes: bytes of each shard that are looked at.

        Raises:
            TlkitError: one of them cannot be read.
            OSError: one went away.
        """
        self._known = {path: known for path, known in self._known.items() if path in sizes}
        anew = [path for path, size in sizes.items() if not self._continue(path, size)]
        if anew:
            self._read_anew({path: sizes[path] for path in anew})
        headers = [self._known[path].shard.header for path in sizes]
        if len({header.run_id for header in headers}) > 1:
            return None
        if len({(header.rank, header.part) for header in headers}) < len(headers):
            return None
        shards = [self._known[path].shard for path in sizes]
        newest = self._newest_of(shards)
        self.is_cut = any(size > _WINDOW_NBYTES for size in sizes.values()) or any(
            len(some.told_sums) < len(shard.told_sums) for some, shard in zip(newest, shards, strict=True)
        )
        return join(newest)

    def _continue(self, path: Path, size: int) -> bool:
        """Take what has come of a shard; False if it has to be read anew."""
        known = self._known.get(path)
        if known is None or size < known.size or size > known.offset + _WINDOW_NBYTES:
            return False
        if size == known.size:
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            first = known.offset - len(known.before)
            data = os.pread(descriptor, size - first, first)
            is_same = os.fstat(descriptor).st_ino == known.inode and data.startswith(known.before)
        finally:
            os.close(descriptor)
        if not is_same or not known.shard.may_hold_sums_only:
            return False
        end = data.rfind(b"\n") + 1
        try:
            told = [_told_by(line) for line in data[len(known.before) : end].split(b"\n") if line]
        except _AnewError:
            return False
        known.shard.count += len(told)
        kept = _KEPT * self._newest
        told = [*known.shard.told_sums, *told][-kept:]
        known.shard.told_sums = _since(told, _last_of(told) - kept)
        known.offset, known.before, known.size = first + end, data[max(end - _BEFORE_NBYTES, 0) : end], size
        return True

    def _read_anew(self, sizes: Mapping[Path, int]) -> None:
        with tempfile.TemporaryDirectory(prefix="tlkit-window-") as folder:
            parts = {path: Path(folder) / str(number) for number, path in enumerate(sizes)}
            inodes = {path: copy_window(path, sizes[path], part, _WINDOW_NBYTES) for path, part in parts.items()}
            sources = [Source(part) for part in parts.values()]
            # In the order of the sources.
            for (path, part), shard in zip(
                parts.items(), scan_shards(sources, lambda _done, _total: None), strict=True
            ):
                data = part.read_bytes()[-_WINDOW_NBYTES:]
                end = data.rfind(b"\n") + 1
                if end < len(data):  # it is being written
                    shard.source.dropped.pop("truncated", None)
                if shard.may_hold_sums_only:  # it has no args to be looked up
                    shard.source = replace(shard.source, path=path)
                offset = sizes[path] - (len(data) - end)
                before = data[max(end - _BEFORE_NBYTES, 0) : end]
                self._known[path] = _Known(shard, inodes[path], offset, before, sizes[path])

    def _newest_of(self, shards: Sequence[Shard]) -> list[Shard]:
        """The shards with the newest steps that all of them have ended, and as they were read: to join them changes them."""
        lasts = [_last_of(shard.told_sums) for shard in shards if shard.may_hold_sums_only]
        first = min(lasts, default=0) - self._newest
        found = []
        for shard in shards:
            mine = copy.copy(shard)
            mine.source = replace(shard.source, dropped=shard.source.dropped.copy())
            mine.told_sums = _since(shard.told_sums, first)
            found.append(mine)
        return found


def _told_by(line: bytes) -> tuple[int, dict[str, Any]]:
    """Time (ns) and args of an event that tells sums.

    Raises:
        _AnewError: it is something else.
    """
    text = line.strip(b", \t\r")
    if not text.startswith(_LINE):
        raise _AnewError
    try:
        event = decode_one(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise _AnewError from None
    args = args_of(event)
    if event.name != STEPS_EVENT or event.ph != "M" or not args:
        raise _AnewError
    return nanoseconds(event.ts), args


def _last_of(told: Sequence[tuple[int, dict[str, Any]]]) -> int:
    """The step after the last one that these events tell; 0 if they tell none."""
    return max((_first_and_count(args)[0] + _first_and_count(args)[1] for _, args in told[-1:]), default=0)


def _since(told: list[tuple[int, dict[str, Any]]], step: int) -> list[tuple[int, dict[str, Any]]]:
    """The events from the first on that tells of this step or a later one."""
    for position, (_, args) in enumerate(told):
        first, count = _first_and_count(args)
        if first + count > step:
            return told[position:]
    return told[-1:]


def _first_and_count(args: dict[str, Any]) -> tuple[int, int]:
    first, rows = args.get("first"), args.get("us")
    known = first if isinstance(first, int) and 0 <= first < _MAX_STEP else 0
    return known, len(rows) if isinstance(rows, list) else 0
