"""The parts of a step that a framework computes in one call, put together from marks out of it.

TensorFlow and JAX run a whole step as one function, on threads of their own, while the training thread waits for it.  Marks in it
say when the batch, the loss and the gradients were there; what lies between two of them is a part of the step.  Without a mark at
the loss, forward and backward are one part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ...timeline.record import recorder
from ...timeline.vocabulary import (
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    FORWARD_BACKWARD,
    OPTIMIZER_STEP,
    SYNCHRONIZE,
    Category,
    LaneKind,
)
from .steps import tracker


class Phases:
    """Where the step is that the training thread waits for."""

    def __init__(self) -> None:
        """Begin outside of any step."""
        self._depth = 0
        self._start_ns = 0
        self._loss_seen = False
        self._updates = False
        self._stepped = False
        self._backward_seen = False
        self._reduced = False
        """Whether the framework's own collective of the gradients is over."""
        self.traced_updates = 0
        """How deep the tracing of a function is in updates of optimizers; replicas are traced in threads, one at a time."""
        self.gone_ahead = False
        """Whether the training thread does not wait for the step that is computed."""

    @contextmanager
    def tracing_update(self) -> Iterator[None]:
        """While the update of an optimizer is traced: what is reduced in it are gradients."""
        self.traced_updates += 1
        try:
            yield
        finally:
            self.traced_updates -= 1

    @property
    def inside(self) -> bool:
        """Whether the training thread is in a call that may be a step."""
        return self._depth > 0

    @contextmanager
    def call(self, owner: object, *, waits: bool = True) -> Iterator[None]:
        """A call of the training thread that may be a step; calls inside of it are part of it.

        Args:
            owner: what steps: its identity tells the steps of one model from another's.
            waits: whether the call returns when the step is done; else a step ends with its reduction.
        """
        if not recorder.is_on() or not (self._depth or recorder.is_training_thread()):
            yield
            return
        self._depth += 1
        if self._depth == 1:
            tracker.touch()
            self._updates = self._stepped = self._loss_seen = self._reduced = False
            self.gone_ahead = not waits
            if waits or not self._start_ns:
                self._start_ns = recorder.now_ns()
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                recorder.mark_training_thread()
                if waits:
                    self._leave(owner)

    def _leave(self, owner: object) -> None:
        if self._updates:
            self._part(Category.OPTIMIZER, OPTIMIZER_STEP, recorder.now_ns())
        if self._updates or self._stepped:
            tracker.optimizer_stepped(owner)
        self._updates = self._stepped = False

    def begin(self) -> None:
        """The forward pass begins, outside of any call."""
        if not self._depth:
            tracker.touch()
            self._start_ns = recorder.now_ns()
            self._loss_seen = False

    def batch(self, asked_ns: int, came_ns: int) -> None:
        """The step has asked for a batch inside of the call, and got it."""
        recorder.complete(LaneKind.DATA, Category.DATA, DATA_WAIT, asked_ns, came_ns, {"workers": 0})
        self._start_ns = came_ns

    def loss(self) -> None:
        """The loss is there: forward ends, and backward begins."""
        if not self._loss_seen:
            self._part(Category.FORWARD, FORWARD, recorder.now_ns())
            self._loss_seen = True

    def backward_done(self) -> None:
        """Backward has ended, and was recorded by whoever saw it."""
        self._backward_seen, self._start_ns = True, recorder.now_ns()

    def gradients(self) -> None:
        """All gradients are there: backward ends."""
        if self._updates:
            return
        if self._backward_seen:
            self._backward_seen = self._loss_seen = False
            return
        at_ns = recorder.now_ns()
        if self._loss_seen:
            self._part(Category.BACKWARD, BACKWARD, at_ns)
        else:
            self._part(Category.FORWARD, FORWARD_BACKWARD, at_ns)
        self._loss_seen = False
        self._updates = self._depth > 0

    def gradients_of_tape(self) -> None:
        """A tape has computed gradients, eagerly; another may follow before the update."""
        self._part(Category.BACKWARD, BACKWARD, recorder.now_ns())
        self._backward_seen, self._loss_seen = True, False

    def reduced(self, owner: object) -> None:
        """The gradients of all ranks are there: the update begins."""
        self._start_ns = recorder.now_ns()
        if self.gone_ahead:
            self._updates = False
            tracker.optimizer_stepped(owner)

    def waited(self, begun_ns: int, end_ns: int, args: dict[str, object]) -> None:
        """The step has waited for a collective that is part of it, after its gradients were there.

        Args:
            args: that say which.
        """
        if not self._updates:
            return
        if self._reduced:
            self._part(Category.OPTIMIZER, OPTIMIZER_STEP, begun_ns)
        begun_ns = max(begun_ns, self._start_ns)
        if end_ns > begun_ns:
            recorder.complete(LaneKind.COMPUTE, Category.OTHER, SYNCHRONIZE, begun_ns, end_ns, args)
            self._start_ns = end_ns
        self._reduced = True

    @contextmanager
    def update(self, owner: object) -> Iterator[None]:
        """The update of the variables, by the training thread itself."""
        with recorder.span(Category.OPTIMIZER, OPTIMIZER_STEP, optimizer=type(owner).__name__):
            yield
        self._updates = self._backward_seen = self._loss_seen = False
        self._start_ns = recorder.now_ns()
        self._stepped = True
        if not self._depth:
            tracker.optimizer_stepped(owner)

    def _part(self, category: Category, name: str, at_ns: int) -> None:
        if self._start_ns and at_ns > self._start_ns:
            recorder.complete(LaneKind.COMPUTE, category, name, self._start_ns, at_ns)
        self._start_ns = at_ns


phases: Final = Phases()


@contextmanager
def reducing(owner: object) -> Iterator[None]:
    """The reduction of a step's gradients, on whatever thread the framework calls it.

    While the training thread waits for the step, that thread stands in for it, so that what it waits for is recorded as anywhere
    else.
    """
    if not recorder.is_on() or not (phases.inside or phases.gone_ahead):
        yield
        return
    phases.gradients()
    begun_ns = recorder.now_ns()
    if not phases.gone_ahead:
        recorder.mark_training_thread()
    try:
        yield
    finally:
        if phases.gone_ahead:
            recorder.complete(LaneKind.COMPUTE, Category.OTHER, SYNCHRONIZE, begun_ns, recorder.now_ns())
        phases.reduced(owner)
