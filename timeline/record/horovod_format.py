"""Turns the same records as `shard_format.py` into the file that Horovod itself writes, for parsers that know no other.

Rank 0's communication only; one "process" a tensor, no threads, whole microseconds, `E` events without names.  What Horovod
does not record (data loading, compute, counters, flows) is left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..vocabulary import COLLECTIVE_KINDS, LANE_TIDS, NEGOTIATE_PREFIX, LaneKind
from .shard_format import ShardHeader, TensorLife, quote

_COMMUNICATION: Final = LANE_TIDS[LaneKind.COMMUNICATION]
_TOP_LEVEL: Final = {kind.upper() for kind in COLLECTIVE_KINDS}
#: Horovod shows no execution of these.
_WITHOUT_EXECUTION: Final = {"barrier", "join"}


class HorovodFormat:
    """Lines of a Horovod timeline; the file is valid JSON after every flush."""

    keeps_tensors = True
    is_always_closed = True
    """Whether the array is closed after every flush, and opened again by the next."""
    is_templated = False
    """What a record becomes depends on those before it."""

    def __init__(self, header: ShardHeader) -> None:
        self._header = header
        self._origin_ns = header.clock.origin_ns
        self._pids: dict[str, int] = {}
        self._activities: list[tuple[int, int, str]] = []
        """Spans inside the collective that is being executed: start, end (ns), name."""
        self._arrivals_us: list[float] = []
        self._failed = False

    def _us(self, at_ns: int) -> int:
        return (at_ns - self._origin_ns) // 1000

    def head(self) -> list[str]:
        """The records that open a file, after the bracket."""
        epoch_us = self._header.clock.origin_unix_ns // 1000
        described = f'{{"start_time_since_epoch_in_micros":{epoch_us}}}'
        return [
            f'{{"name": "process_name", "ph": "M", "pid": 0, "args": {described}}},\n',
            '{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},\n',
        ]

    def _pid(self, name: str, lines: list[str]) -> int:
        pid = self._pids.get(name)
        if pid is None:
            pid = self._pids[name] = len(self._pids) + 1
            lines.append(
                f'{{"name": "process_name", "ph": "M", "pid": {pid}, "args": {{"name": {quote(name)}}}}},\n'
                f'{{"name": "process_sort_index", "ph": "M", "pid": {pid}, "args": {{"sort_index": {pid}}}}},\n'
            )
        return pid

    @staticmethod
    def _begin(name: str, at_us: int, pid: int) -> str:
        return f'{{"ph": "B", "name": "{name}", "ts": {at_us}, "pid": {pid}}},\n'

    @staticmethod
    def _end(at_us: int, pid: int, described: str = "") -> str:
        return f'{{"ph": "E", "ts": {at_us}, "pid": {pid}{described}}},\n'

    def span(self, name: str, category: str, tid: int, start_ns: int, end_ns: int, args: dict[str, Any] | None) -> str:
        """Keep what belongs to the collective whose tensors come next."""
        del category
        if tid != _COMMUNICATION:
            return ""
        if name in _TOP_LEVEL:
            self._arrivals_us = (args or {}).get("arrivals") or []
            self._failed = "error" in (args or {})
        else:
            self._activities.append((start_ns, end_ns, name))
        return ""

    def begin(self, name: str, category: str, tid: int, at_ns: int, args: dict[str, Any] | None) -> str:
        """A span that is still open: it is written when it has ended."""
        del args
        if tid == _COMMUNICATION and name not in _TOP_LEVEL:
            self._activities.append((at_ns, -1, name))
        del category
        return ""

    def end(self, name: str, category: str, tid: int, at_ns: int, args: dict[str, Any] | None) -> str:
        """The end of a span that was begun with `begin`."""
        for position, (start_ns, end_ns, known) in enumerate(self._activities):
            if tid == _COMMUNICATION and known == name and end_ns < 0:
                self._activities[position] = (start_ns, at_ns, name)
                return ""
        return self.span(name, category, tid, at_ns, at_ns, args)

    def life_begin(self, life: TensorLife, process_set: int) -> str:
        """A tensor that is still waiting for other ranks."""
        del process_set
        lines: list[str] = []
        pid = self._pid(life.name, lines)
        lines.append(self._begin(f"{NEGOTIATE_PREFIX}{life.kind.upper()}", self._us(life.submitted_ns), pid))
        return "".join(lines)

    def lives(self, lives: Sequence[TensorLife], process_set: int, seq: int, times_ns: tuple[int, int, int]) -> str:
        """All events of the tensors of one executed collective (arguments as in `ShardFormat.lives`)."""
        del process_set, seq
        negotiated_us, start_us, end_us = (self._us(at_ns) for at_ns in times_ns)
        activities, self._activities = self._activities, []
        arrivals_us, self._arrivals_us = self._arrivals_us, []
        failed, self._failed = self._failed, False
        lines: list[str] = []
        pids = [self._pid(life.name, lines) for life in lives]
        for life, pid in zip(lives, pids, strict=True):
            if life.kind == "join":
                continue
            if life.claim():  # else an earlier flush wrote it
                name = f"{NEGOTIATE_PREFIX}{life.kind.upper()}"
                lines.append(self._begin(name, min(self._us(life.submitted_ns), negotiated_us), pid))
            lines += [
                f'{{"ph": "X", "name": "{rank}", "ts": {min(math.floor(at_us), negotiated_us)}, "pid": {pid}, "dur": 0}},\n'
                for at_us, rank in sorted((at_us, rank) for rank, at_us in enumerate(arrivals_us))
            ]
            lines.append(self._end(negotiated_us, pid))
        if lives[0].kind in _WITHOUT_EXECUTION:
            return "".join(lines)
        top_level = "ERROR" if failed else lives[0].kind.upper()
        lines += [self._begin(top_level, start_us, pid) for pid in pids]
        reached_ns = 0
        for begun_ns, ended_ns, name in sorted(activities):
            if begun_ns < reached_ns or ended_ns < begun_ns:  # one level only, as Horovod has it
                continue
            reached_ns = ended_ns
            lines += [self._begin(name, self._us(begun_ns), pid) for pid in pids]
            lines += [self._end(self._us(ended_ns), pid) for pid in pids]
        for life, pid in zip(lives, pids, strict=True):
            shape = ", ".join(map(str, life.shape))
            described = f', "args": {{"dtype": "{life.dtype}", "shape": "[{shape}]"}}'
            lines.append(self._end(end_us, pid, "" if failed else described))
        return "".join(lines)

    def instant(self, name: str, at_ns: int) -> str:
        """An instant of the whole job."""
        return f'{{"ph": "i", "name": {quote(name)}, "ts": {self._us(at_ns)}, "s": "g"}},\n'

    # What Horovod's file has no place for.

    def counter(self, name: str, at_ns: int, value: float) -> str:
        """Nothing."""
        del name, at_ns, value
        return ""

    def largest_gradient(self, name: str, nbytes: int, all_nbytes: int) -> str:  # noqa: ARG002  the same signature
        """Nothing: Horovod has no such line."""
        return ""

    def settings(self, on: Mapping[str, float], details: Mapping[str, str]) -> str:  # noqa: ARG002  the same signature
        """Nothing: Horovod has no such line."""
        return ""

    def clock(self, at_ns: int, offset_ns: int, uncertainty_ns: int) -> str:
        """Nothing."""
        del at_ns, offset_ns, uncertainty_ns
        return ""

    def worker_lane(self, worker: int) -> str:
        """Nothing."""
        del worker
        return ""

    def finish(self, events: int, lost: int, error: str = "") -> str:
        """Nothing."""
        del events, lost, error
        return ""
