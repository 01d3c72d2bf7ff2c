"""A tensor on its way through the runtime, and the handle by which the training asks for it."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..timeline.shard_format import TensorLife
from .control.messages import Request


class Handle:
    """One asynchronous operation, of one tensor or of a group."""

    __slots__ = ("entries", "error", "remaining", "to_result")

    def __init__(self, to_result: Callable[[Sequence["Entry"]], Any]) -> None:
        self.to_result = to_result
        """Makes what `synchronize` returns from the finished entries."""
        self.entries: list[Entry] = []
        self.remaining = 0
        self.error: str | None = None

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.remaining == 0


class Entry:
    """One tensor submitted by this rank."""

    __slots__ = ("handle", "life", "output", "request", "submitted_ns", "tensor")

    def __init__(
        self,
        request: Request,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
        handle: Handle,
        submitted_ns: int,
    ) -> None:
        self.request = request
        self.tensor = tensor
        self.output = output
        """Where the result goes; None if it is allocated when its size is known (allgather)."""
        self.handle = handle
        self.submitted_ns = submitted_ns
        self.life: TensorLife | None = None
        """What the timeline will say of it; None while the timeline is off."""


class Completions:
    """Lets threads wait for handles; one condition for all of them, since one is much cheaper than one each."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def finish(self, entries: Sequence[Entry], error: str | None = None) -> None:
        """Mark entries as executed, or failed with `error`, and wake who waits for them."""
        with self._changed:
            for entry in entries:
                entry.handle.remaining -= 1
                if error is not None and entry.handle.error is None:
                    entry.handle.error = error
            self._changed.notify_all()

    def wait(self, handle: Handle) -> None:
        """Block until `handle` is done."""
        with self._changed:
            while not handle.done:
                self._changed.wait()
