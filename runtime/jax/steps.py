"""Steps of a training in JAX, as far as they show from outside of its compiled functions.

A step ends when its gradients are reduced: the update is part of the next one.  Forward and backward are one compiled program, so
that they are one part, FORWARD_AND_BACKWARD: from when the loop has its batch, or has reduced the gradients before, to the
reduction.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from ...timeline.record import recorder
from ...timeline.vocabulary import DATA_WAIT, Category, LaneKind
from ..instrument.steps import tracker

FORWARD_AND_BACKWARD: Final = "FORWARD_AND_BACKWARD"

T = TypeVar("T")


class _Training:
    """When the part that is under way began; callbacks come from a thread of JAX's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun_ns: int | None = None
        self.marker = object()


_training = _Training()


def batches(loader: Iterable[T]) -> Iterator[T]:
    """Batches of any loader, with the time that the loop waits for each in the timeline.

    >>> list(batches([1, 2]))
    [1, 2]
    """
    iterator = iter(loader)
    while True:
        if recorder.is_timeline_on():
            tracker.touch()
        try:
            with recorder.span(Category.DATA, DATA_WAIT, LaneKind.DATA):
                batch = next(iterator)
        except StopIteration:
            return
        with _training.lock:
            _training.begun_ns = recorder.now_ns()
        yield batch


def reduction_begins() -> None:
    """The compiled program has come to its gradients."""
    if not recorder.is_timeline_on():
        return
    now = recorder.now_ns()
    with _training.lock:
        begun, _training.begun_ns = _training.begun_ns, None
    if begun is not None and begun < now:
        recorder.complete(LaneKind.COMPUTE, Category.FORWARD, FORWARD_AND_BACKWARD, begun, now)
    tracker.touch()


def step_ends() -> None:
    """Gradients are reduced."""
    if recorder.is_timeline_on():
        tracker.optimizer_stepped(_training.marker)
    with _training.lock:
        _training.begun_ns = recorder.now_ns()


def forget() -> None:
    """The runtime has ended."""
    with _training.lock:
        _training.begun_ns = None
