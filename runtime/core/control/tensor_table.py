"""A rank's side of the negotiation: the tensors it has submitted, and the ids under which the coordinator knows them.

Like the coordinator a state machine without sockets.  `submit` is called by the training, all else by whoever drives the
control plane.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ..errors import SHUT_DOWN, HorovodInternalError
from .messages import Ready, Request, Response, Work, from_ranges, to_ranges, to_runs

if TYPE_CHECKING:
    from ..work import Entry

#: Characters of names, and bytes of values, after which a message ends: the next one takes the rest.
_LONG_MESSAGE: Final = 1 << 22

Key = tuple[int, str]
"""Process set and full name of a tensor."""


_SAME_NAME: Final = (
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently being "
    "processed. If you want to request another tensor, use a different tensor name. Tensor name: "
)


class TensorRecord:
    """What this rank knows of a tensor name."""

    __slots__ = ("entry", "id", "key", "registered", "request")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.entry: Entry | None = None
        """The tensor between submission and execution."""
        self.request: Request | None = None
        """What the last submission asked for; the next one asks for the same if it is equal."""
        self.registered: Request | None = None
        """The request to which the coordinator has assigned `id`."""
        self.id = -1


class TensorTable:
    """Tensors of this rank between submission and execution."""

    def __init__(self, make_absent: "Callable[[Request], Entry] | None" = None) -> None:
        """Begin with nothing submitted.

        Args:
            make_absent: makes what this rank contributes to a collective that it takes no part in, having joined.
        """
        # A signal handler may submit while it interrupts a submission of the same thread.
        self._lock = threading.RLock()
        self._submitting: Sequence[Entry] = ()
        self._records: dict[Key, TensorRecord] = {}
        self._by_id: dict[int, dict[int, TensorRecord]] = {}
        self._unsent: deque[TensorRecord] = deque()
        self._closed: str | None = None
        self.cause = ""
        """Why it was closed, in fewer words."""
        self._make_absent = make_absent
        self.send_times = False
        """Whether requests carry the times of submission."""

    @property
    def has_unsent(self) -> bool:
        """Whether something was submitted that the coordinator does not know of."""
        return bool(self._unsent)

    def record(self, process_set: int, name: str) -> TensorRecord | None:
        """What is known of a tensor, if it was submitted before."""
        return self._records.get((process_set, name))

    def submit(self, entries: Sequence["Entry"]) -> None:
        """Take in tensors, all or none.

        Raises:
            ValueError: one of the names is in flight already.
            HorovodInternalError: the runtime is shut down.
        """
        with self._lock:
            if self._closed is not None:
                raise HorovodInternalError(self._closed)
            interrupted = self._submitting
            self._submitting = entries
            try:
                if interrupted:
                    _refuse_same(entries, interrupted)
                self._unsent.extend(self._take(entries))
            finally:
                self._submitting = interrupted

    def submit_again(self, record: TensorRecord, entry: "Entry") -> bool:
        """Take in a tensor that asks for what was asked for last; False if it takes `submit` to say what is wrong with it.

        What is usual, in as few steps: whatever interrupts this finds it submitted, or not begun.
        """
        with self._lock:
            if (
                record.entry is not None
                or record.request is not entry.request
                or self._submitting
                or self._closed is not None
                or self._records.get(record.key) is not record
            ):
                return False
            self._submitting = (entry,)
            try:
                record.entry = entry
                self._unsent.append(record)
            finally:
                self._submitting = ()
        return True

    def _take(self, entries: Sequence["Entry"]) -> list[TensorRecord]:
        records = self._records
        taken: list[TensorRecord] = []
        for entry in entries:
            request = entry.request
            key = (request.process_set, request.name)
            record = records.get(key)
            if record is None:
                record = records[key] = TensorRecord(key)
            elif record.entry is not None:
                for each in taken:
                    each.entry = None
                    if each.id < 0:
                        records.pop(each.key, None)
                raise ValueError(_SAME_NAME + request.name)
            record.entry = entry
            record.request = request
            taken.append(record)
        return taken

    def pending(self) -> list["Entry"]:
        """What was submitted and has not been executed."""
        with self._lock:
            return [record.entry for record in list(self._records.values()) if record.entry is not None]

    def collect(self, done: int = 0) -> Ready | None:
        """The next message that tells the coordinator what it does not know yet; None if it knows all.

        Args:
            done: how many responses this rank has executed so far.
        """
        unsent = self._unsent
        fresh: list[Request] = []
        known: dict[int, list[int]] = {}
        fresh_values: dict[int, bytes] = {}
        known_values: dict[int, dict[int, bytes]] = {}
        fresh_ns: list[int] = []
        known_ns: dict[int, list[int]] = {}
        timed = self.send_times
        length = 0
        while unsent:
            record = unsent.popleft()
            entry = record.entry
            if entry is None:  # the runtime was closed meanwhile
                continue
            request = entry.request
            if record.id >= 0 and (record.registered is request or record.registered == request):
                process_set = record.key[0]
                ids = known.get(process_set)
                if ids is None:
                    ids = known[process_set] = []
                    known_ns[process_set] = []
                if entry.values is not None:
                    known_values.setdefault(process_set, {})[len(ids)] = entry.values
                    length += len(entry.values)
                ids.append(record.id)
                if timed:
                    known_ns[process_set].append(entry.submitted_ns)
                if length > _LONG_MESSAGE:
                    break
                continue
            if entry.values is not None:
                fresh_values[len(fresh)] = entry.values
                length += len(entry.values)
            fresh.append(request)
            fresh_ns.append(entry.submitted_ns)
            length += len(request.name)
            if request.kind.changes_ranks or length > _LONG_MESSAGE:
                break
        if not fresh and not known:
            return None
        times = to_runs(itertools.chain(fresh_ns, *known_ns.values())) if timed else []
        ranges = {number: to_ranges(ids) for number, ids in known.items()}
        values = _by_place(len(fresh), fresh_values, known, known_values)
        return Ready(fresh, ranges, times, done, values)

    def receive(self, work: Work) -> list[tuple[Response, list["Entry"]]]:
        """Match what is to be executed with this rank's tensors.

        Raises:
            HorovodInternalError: the coordinator names a tensor that this rank never submitted.
        """
        matched = []
        for response in work.responses:
            by_id = self._by_id.get(response.process_set)
            if by_id is None:
                by_id = self._by_id[response.process_set] = {}
            if response.names:
                matched.append((response, self._receive_named(response, by_id)))
                continue
            entries = []
            for number in from_ranges(response.ids):
                record = by_id[number]
                entry = record.entry
                if entry is None:
                    raise HorovodInternalError(f"the coordinator answered for {record.key[1]}, which was not requested")
                record.entry = None
                entries.append(entry)
            matched.append((response, entries))
        for process_set, ids in work.forgotten.items():
            self._forget(process_set, ids)
        return matched

    def _receive_named(self, response: Response, by_id: dict[int, TensorRecord]) -> list["Entry"]:
        entries = []
        for position, name in enumerate(response.names):
            key = (response.process_set, name)
            with self._lock:
                record = self._records.get(key)
                entry = None if record is None else record.entry
                if record is not None:
                    record.entry = None
            if entry is None or record is None:
                if response.error:
                    continue  # this rank has joined, or never asked: the others hear of the error
                if response.absent and self._make_absent is not None:
                    entries.append(self._make_absent(response.absent[position]))
                    continue
                raise HorovodInternalError(f"the coordinator answered for {name}, which was not requested")
            entries.append(entry)
            number = response.fresh_ids[position]
            if number >= 0:
                record.registered = entry.request
                record.id = number
                by_id[number] = record
            elif record.id < 0:
                self._drop(record)
        return entries

    def _drop(self, record: TensorRecord) -> None:
        """Forget a name that has no id, such as one made for a single use."""
        with self._lock:
            if record.entry is None:
                self._records.pop(record.key, None)

    def _forget(self, process_set: int, ids: Sequence[int]) -> None:
        """These ids are not given any more; what was said by them a moment ago will be answered by name."""
        by_id = self._by_id.get(process_set, {})
        for number in ids:
            record = by_id.pop(number, None)
            if record is not None and record.id == number:
                record.id = -1
                self._drop(record)

    def forget_process_set(self, process_set: int) -> None:
        """The set is gone, and its number may come back for another."""
        self._by_id.pop(process_set, None)
        with self._lock:
            for key in [key for key in self._records if key[0] == process_set]:
                record = self._records[key]
                record.id = -1
                if record.entry is None:
                    del self._records[key]

    def close(self, reason: str) -> list["Entry"]:
        """Refuse further tensors; returns those that will never be executed."""
        with self._lock:
            if self._closed is None:
                self._closed = f"{SHUT_DOWN} Cause: {reason}" if reason else SHUT_DOWN
                self.cause = reason
            entries = [record.entry for record in list(self._records.values()) if record.entry is not None]
            self._records.clear()
            self._unsent.clear()
        return entries

    @property
    def closed(self) -> str | None:
        """Why nothing can be submitted any more; None while it can."""
        return self._closed


def _by_place(
    fresh: int,
    fresh_values: dict[int, bytes],
    known: dict[int, list[int]],
    known_values: dict[int, dict[int, bytes]],
) -> dict[int, bytes]:
    """Values by place in the whole message, out of those by place in its parts."""
    if not known_values:
        return fresh_values
    values = dict(fresh_values)
    start = fresh
    for process_set, ids in known.items():
        values |= {start + place: value for place, value in known_values.get(process_set, {}).items()}
        start += len(ids)
    return values


def _refuse_same(entries: Sequence["Entry"], others: Sequence["Entry"]) -> None:
    """Raise if a signal handler submits what the submission that it has interrupted is about."""
    keys = {(entry.request.process_set, entry.request.name) for entry in others}
    for entry in entries:
        if (entry.request.process_set, entry.request.name) in keys:
            raise ValueError(_SAME_NAME + entry.request.name)
