"""When all gradients of a bucket are there.

At first every gradient says so when it is ready.  A call a gradient is what that costs; backward runs the same model again and
again, so if the same gradients come first and last some times, these two are watched alone.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from .buckets import Bucket

TOO_MANY_BACKWARDS: Final = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)

#: After so many steps with the same first and last gradient, the others are not watched any more.
_STEPS_TO_LEARN: Final = 3


class BucketWatch:
    """Launches one bucket when backward has made its gradients."""

    def __init__(self, bucket: Bucket, delay: dict[torch.Tensor, int], launch: Callable[[Bucket], None]) -> None:
        """Prepare; nothing is watched before `watch_all`.

        Args:
            delay: backward passes that each parameter is waiting for; counted down here.
            launch: starts to reduce the bucket.
        """
        self.bucket = bucket
        self._delay = delay
        self._launch = launch
        self._hooks: list[Any] = []
        self._learns = False
        self._first: torch.Tensor | None = None
        self._order: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
        self._times = 0

    def _hook(self, parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
        register: Any = parameter.register_post_accumulate_grad_hook
        self._hooks.append(register(hook))

    def stop(self) -> None:
        """Watch nothing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def watch_all(self, *, learn: bool) -> None:
        """Watch every gradient.

        Args:
            learn: whether to watch two alone as soon as it is known which come first and last.
        """
        self.stop()
        self._learns, self._times = learn, 0
        for parameter in self.bucket.parameters:
            self._hook(parameter, self._is_ready)

    def _is_ready(self, parameter: torch.Tensor) -> None:
        left = self._delay[parameter] - 1
        if left < 0:
            raise AssertionError(TOO_MANY_BACKWARDS)
        self._delay[parameter] = left
        if left:
            return
        bucket = self.bucket
        if bucket.remaining == len(bucket.parameters):
            self._first = parameter
        bucket.remaining -= 1
        if not bucket.remaining:
            self._launch(bucket)
            self._learn((self._first, parameter))

    def _learn(self, order: tuple[torch.Tensor | None, torch.Tensor]) -> None:
        same = order[0] is self._order[0] and order[1] is self._order[1]
        self._times = self._times + 1 if same else 1
        self._order = order
        if self._learns and order[0] is not None and self._times >= _STEPS_TO_LEARN:
            self._watch_two(order[0], order[1])

    def _watch_two(self, first: torch.Tensor, last: torch.Tensor) -> None:
        """Take the last gradient for a sign that all are there.

        The sign is checked: all gradients must have changed since the first one came.  If one has not (the order was another
        this time, or backward did not reach it), all are watched again, for good.
        """
        self.stop()
        if first is not last:
            self._hook(first, self.bucket.look)
        self._hook(last, self._last_is_ready)

    def _last_is_ready(self, parameter: torch.Tensor) -> None:
        bucket = self.bucket
        if bucket.launched is not None:
            raise AssertionError(TOO_MANY_BACKWARDS)
        if len(bucket.parameters) == 1:
            bucket.look(parameter)
        if bucket.is_fresh():
            self._launch(bucket)
            bucket.remember_versions()
        else:
            self.watch_all(learn=False)
            # Which gradients are there is not known this once: `start_missing` launches the bucket.
            bucket.remaining = 2 * len(bucket.parameters)
