"""A tensor on its way through the runtime, and the handle by which the training asks for it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...timeline.record.shard_format import Call, TensorLife
from .control.messages import Request, Response


class Buffer(Protocol):
    """A framework's tensor; the core asks for its size alone."""

    @property
    def nbytes(self) -> int:
        """Bytes."""


class Handle:
    """One asynchronous operation, of one tensor or of a group."""

    __slots__ = ("call", "entries", "error", "flow", "remaining", "seq", "to_result")

    def __init__(self, to_result: Callable[[Sequence["Entry"]], Any]) -> None:
        self.to_result = to_result
        """Makes what `synchronize` returns from the finished entries."""
        self.entries: Sequence[Entry] = ()
        self.remaining = 0
        self.error: str | None = None
        self.seq = -1
        """Number of the last collective that was executed for it, as far as it is recorded."""
        self.call: Call | None = None
        """Who asked for it; None if that happened while no timeline was written."""
        self.flow = False
        """Whether it was asked for inside a span of the compute lane."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.remaining == 0


class Entry:
    """One tensor submitted by this rank."""

    __slots__ = (
        "extra",
        "handle",
        "life",
        "output",
        "produced",
        "request",
        "submitted_ns",
        "tensor",
        "together",
        "values",
    )

    def __init__(
        self,
        request: Request,
        tensor: Any,
        output: Any,
        handle: Handle,
        submitted_ns: int,
        extra: Any = None,
    ) -> None:
        self.request = request
        self.tensor = tensor
        """A `Buffer` of the framework that submitted it."""
        self.output = output
        """Where the result goes; None if it is allocated when its size is known (allgather, alltoall)."""
        self.handle = handle
        self.submitted_ns = submitted_ns
        self.extra = extra
        """What the kind needs or yields besides: splits of an alltoall, the last rank of a join, a new set's id."""
        self.life: TensorLife | None = None
        """What the timeline has recorded of it so far."""
        self.produced: Any = None
        """For a tensor on a GPU, the event after which it may be read."""
        self.values: bytes | None = None
        """Of a small tensor, to be sent along when it is asked for."""
        self.together: Together | None = None
        """What it is a part of; none for most."""


class Together:
    """Tensors that are reduced in place, together and again and again, and lie one behind the other in memory."""

    __slots__ = ("entries", "memory")

    def __init__(self, entries: list[Entry], memory: Any) -> None:
        """Join them.

        Args:
            memory: all of them as one flat tensor.
        """
        self.entries = entries
        self.memory = memory
        for entry in entries:
            entry.together = self


def whole_of(entries: Sequence[Entry]) -> Any:
    """The memory of entries that are all there is of a `Together`, in its order; None of others."""
    together = entries[0].together
    return together.memory if together is not None and together.entries == entries else None


@dataclass(frozen=True, slots=True)
class Batch:
    """One collective to execute."""

    response: Response
    entries: Sequence[Entry]
    negotiated_ns: int


class Completions:
    """Lets threads wait for handles; one condition for all of them, since one is much cheaper than one each."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.on_finish: Callable[[], None] | None = None
        """Called after something has finished, while a thread waits elsewhere than here."""

    def finish(self, entries: Sequence[Entry], error: str | None = None) -> None:
        """Mark entries as executed, or failed with `error`, and wake who waits for them."""
        with self._changed:
            for entry in entries:
                entry.handle.remaining -= 1
                if error is not None and entry.handle.error is None:
                    entry.handle.error = error
            self._changed.notify_all()
        callback = self.on_finish
        if callback is not None:
            callback()

    def wait(self, handle: Handle, timeout_s: float | None = None) -> None:
        """Block until `handle` is done, or for `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: handle.remaining == 0, timeout_s)
