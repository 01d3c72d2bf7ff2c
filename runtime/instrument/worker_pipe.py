"""How data loader workers tell the rank what they did: fixed records through a pipe.

A worker is another process, which has no timeline of its own.  Each batch is one record, small enough that the kernel
writes it whole, on a pipe that all workers of an iterator share.  A worker never waits for the pipe: what does not fit is
dropped and counted.  The clock is CLOCK_MONOTONIC, which processes of a host share.
"""

import os
import struct
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from ...timeline.record import recorder
from ...timeline.vocabulary import COLLATE, DATA_FETCH, DATASET, Category, LaneKind

_RECORD: Final = struct.Struct("<iiqqqq")
_READ_NBYTES: Final = _RECORD.size * 4096


class FetchTimes(NamedTuple):
    """When one batch was made (ns): all of it, and its collation, which may be missing (0, 0)."""

    start_ns: int
    end_ns: int
    collate_start_ns: int
    collate_end_ns: int


class WorkerEnd:
    """The worker's side of the pipe."""

    def __init__(self, connection: Connection, worker: int) -> None:
        self._connection = connection  # keeps the descriptor open
        self._descriptor = connection.fileno()
        os.set_blocking(self._descriptor, False)
        self.worker = worker
        """Its number."""
        self._dropped = 0

    def send(self, times: FetchTimes) -> None:
        """Tell of one batch."""
        try:
            os.write(self._descriptor, _RECORD.pack(self.worker, self._dropped, *times))
            self._dropped = 0
        except BlockingIOError:
            self._dropped += 1
        except OSError:  # the rank is gone; the worker will notice by itself
            pass


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
            data = self._rest + data
            whole = len(data) - len(data) % _RECORD.size
            self._rest = data[whole:]
            for worker, dropped, *times in _RECORD.iter_unpack(data[:whole]):
                record_fetch(FetchTimes(*times), worker, dropped)


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
