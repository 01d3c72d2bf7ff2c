"""How data loader workers tell the rank what they did: small records through a pipe.

A worker is another process, which has no timeline of its own.  Each batch is one record, and so is each look at the worker's
stack, small enough that the kernel writes it whole, on a pipe that all workers of an iterator share.  A worker never waits for
the pipe: what does not fit is dropped and counted.  The clock is CLOCK_MONOTONIC, which processes of a host share.
"""

import os
import struct
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from ...timeline.model.code_spans import LOOK_NS
from ...timeline.record import recorder
from ...timeline.vocabulary import COLLATE, DATA_FETCH, DATASET, Category, LaneKind

#: Kind, bytes that follow, worker.
_HEADER: Final = struct.Struct("<HHi")
_BATCH: Final = 1
_LOOK: Final = 2
#: Records dropped before, and four times.
_TIMES: Final = struct.Struct("<iqqqq")
#: Moment, between two looks, and for how many it stands; the name follows, a NUL, and the text of the line.
_MOMENT: Final = struct.Struct("<qqi")
_MAX_NAME: Final = 300
_MAX_TEXT: Final = 400
_READ_NBYTES: Final = 1 << 18


class FetchTimes(NamedTuple):
    """When one batch was made (ns): all of it, and its collation, which may be missing (0, 0)."""

    start_ns: int
    end_ns: int
    collate_start_ns: int
    collate_end_ns: int


class Look(NamedTuple):
    """Where a worker was while it made a batch."""

    at_ns: int
    every_ns: int
    """Between two looks."""
    stands_for: int
    """As many were due until the worker could be looked at, inside of one call."""
    name: str
    """Of the span (code_spans.py)."""
    text: str
    """Of the line, "" if unknown."""


class WorkerEnd:
    """The worker's side of the pipe."""

    def __init__(self, connection: Connection, worker: int) -> None:
        self._connection = connection  # keeps the descriptor open
        self._descriptor = connection.fileno()
        os.set_blocking(self._descriptor, False)
        self.worker = worker
        """Its number."""
        self.began_ns = 0
        """When it began the batch that it makes; 0 while it waits for the next one."""
        self._dropped = 0

    def send(self, times: FetchTimes) -> None:
        """Tell of one batch."""
        if self._write(_BATCH, _TIMES.pack(self._dropped, *times)):
            self._dropped = 0
        else:
            self._dropped += 1

    def send_look(self, look: Look) -> None:
        """Tell of one look; called on another thread than `send`."""
        words = look.name.encode()[:_MAX_NAME] + b"\0" + look.text.encode()[:_MAX_TEXT]
        self._write(_LOOK, _MOMENT.pack(look.at_ns, look.every_ns, look.stands_for) + words)

    def _write(self, kind: int, record: bytes) -> bool:
        """Whether there was room."""
        try:
            os.write(self._descriptor, _HEADER.pack(kind, len(record), self.worker) + record)
        except BlockingIOError:
            return False
        except OSError:  # the rank is gone; the worker will notice by itself
            pass
        return True


class RankEnd:
    """The rank's side: drained by the timeline's writer, until the last worker has gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        os.set_blocking(connection.fileno(), False)
        self._rest = b""
        recorder.add_drain(self.drain)

    def drain(self) -> None:
        """Record what has arrived."""
        while True:
            try:
                data = os.read(self._connection.fileno(), _READ_NBYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                recorder.remove_drain(self.drain)
                self._connection.close()
                return
            self._rest = _record_all(self._rest + data)


def _record_all(data: bytes) -> bytes:
    """Record what is there; what is left is the beginning of a record."""
    place = 0
    while place + _HEADER.size <= len(data):
        kind, nbytes, worker = _HEADER.unpack_from(data, place)
        begin, end = place + _HEADER.size, place + _HEADER.size + nbytes
        if end > len(data):
            break
        if kind == _BATCH:
            dropped, *times = _TIMES.unpack_from(data, begin)
            record_fetch(FetchTimes(*times), worker, dropped)
        else:
            name, _, text = data[begin + _MOMENT.size : end].partition(b"\0")
            at_ns, every_ns, stands_for = _MOMENT.unpack_from(data, begin)
            record_look(Look(at_ns, every_ns, stands_for, name.decode(errors="replace"), text.decode(errors="replace")))
        place = end
    return data[place:]


def record_fetch(times: FetchTimes, worker: int, dropped: int = 0) -> None:
    """Put one batch of a worker on the timeline, children after the parent."""
    args: dict[str, int] = {"worker": worker}
    if dropped:
        args["dropped_before"] = dropped
    lane, data = LaneKind.WORKER, Category.DATA
    recorder.complete(lane, data, DATA_FETCH, times.start_ns, times.end_ns, args, worker)
    dataset_end_ns = times.collate_start_ns or times.end_ns
    recorder.complete(lane, data, DATASET, times.start_ns, dataset_end_ns, None, worker)
    if times.collate_start_ns:
        recorder.complete(lane, data, COLLATE, times.collate_start_ns, times.collate_end_ns, None, worker)


def record_look(look: Look) -> None:
    """Put a look at a worker on the timeline, as many times as it stands for."""
    args = {"text": look.text} if look.text else None
    for number in range(look.stands_for):
        at_ns = look.at_ns + number * look.every_ns
        recorder.complete(LaneKind.WORKER_CODE, Category.DATA, look.name, at_ns, at_ns + LOOK_NS, args)
