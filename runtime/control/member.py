"""A rank's side of the negotiation: what it has submitted, what it has said, what it was told.

Like the coordinator a state machine without sockets.  `submit` is called by the training, all else by the control thread.
"""

import threading
from collections import deque
from typing import TYPE_CHECKING

from ..errors import SHUT_DOWN, HorovodInternalError
from .messages import Ready, Request, Response, Work

if TYPE_CHECKING:
    from ..work import Entry


class Member:
    """Tensors of this rank between submission and execution."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, str], Entry] = {}
        self._unsaid: deque[Entry] = deque()
        self._ids: dict[tuple[int, str], tuple[Request, int]] = {}
        self._keys: dict[int, tuple[int, str]] = {}
        self._closed: str | None = None

    @property
    def has_unsaid(self) -> bool:
        """Whether something was submitted that the coordinator does not know of."""
        return bool(self._unsaid)

    def submit(self, entries: list["Entry"]) -> None:
        """Take in tensors, all or none.

        Raises:
            ValueError: one of the names is in flight already.
            HorovodInternalError: the runtime is shut down.
        """
        with self._lock:
            if self._closed is not None:
                raise HorovodInternalError(self._closed)
            keys = [(entry.request.process_set, entry.request.name) for entry in entries]
            for key in keys:
                if key in self._waiting or (len(keys) > 1 and keys.count(key) > 1):
                    raise ValueError(
                        "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor "
                        "that is currently being processed. If you want to request another tensor, use a different "
                        f"tensor name. Tensor name: {key[1]}"
                    )
            for key, entry in zip(keys, entries, strict=True):
                self._waiting[key] = entry
                self._unsaid.append(entry)

    def pending(self) -> list["Entry"]:
        """What was submitted and has not been executed."""
        with self._lock:
            return list(self._waiting.values())

    def collect(self) -> Ready | None:
        """The message that tells the coordinator what it does not know yet; None if it knows all."""
        fresh, fresh_ns, known, known_ns = [], [], [], []
        unsaid = self._unsaid
        while unsaid:
            entry = unsaid.popleft()
            request = entry.request
            said = self._ids.get((request.process_set, request.name))
            if said is not None and said[0] == request:
                known.append(said[1])
                known_ns.append(entry.submitted_ns)
            else:
                fresh.append(request)
                fresh_ns.append(entry.submitted_ns)
        return Ready(fresh, fresh_ns, known, known_ns) if fresh or known else None

    def repeat(self, ids: list[int]) -> None:
        """The coordinator has forgotten `ids`: say those tensors again, in full."""
        for number in ids:
            key = self._keys.pop(number, None)
            if key is None:
                continue
            self._ids.pop(key, None)
            entry = self._waiting.get(key)
            if entry is not None:
                self._unsaid.append(entry)

    def receive(self, work: Work) -> list[tuple[Response, list["Entry"]]]:
        """Match what is to be executed with this rank's tensors.

        Raises:
            HorovodInternalError: the coordinator names a tensor that this rank never submitted.
        """
        matched = []
        for response in work.responses:
            entries = []
            for position, number in enumerate(response.ids):
                key = (response.process_set, response.names[position]) if response.names else self._keys[number]
                with self._lock:
                    entry = self._waiting.pop(key, None)
                if entry is None:
                    raise HorovodInternalError(f"the coordinator answered for {key[1]}, which was not asked")
                if response.names and number >= 0:
                    self._ids[key] = (entry.request, number)
                    self._keys[number] = key
                entries.append(entry)
            matched.append((response, entries))
        for number in work.forgotten:
            # The tensor may have been said by this id a moment ago; `repeat` will ask for its key then.
            known = self._keys.get(number)
            if known is not None:
                self._ids.pop(known, None)
                if known not in self._waiting:
                    del self._keys[number]
        return matched

    def close(self, reason: str) -> list["Entry"]:
        """Refuse further tensors; returns those that will never be executed."""
        with self._lock:
            if self._closed is None:
                self._closed = f"{SHUT_DOWN} Cause: {reason}" if reason else SHUT_DOWN
            entries = list(self._waiting.values())
            self._waiting.clear()
            self._unsaid.clear()
        return entries

    @property
    def closed(self) -> str | None:
        """Why nothing can be submitted any more; None while it can."""
        return self._closed
