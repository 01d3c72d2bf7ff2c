"""The optimizer for `op=Adasum`: what is combined over the ranks is how far each would step, not the gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import instrument
from ..core.calls import calling
from .operands import Adasum
from .reduce_operations import grouped_allreduce_async_
from .submission import synchronize


class AdasumOptimizer(torch.optim.Optimizer):
    """Mixed in front of the user's optimizer class by `DistributedOptimizer`.

    Every rank takes the step that its own gradients ask for; the differences are combined by Adasum, and all ranks go there
    from the common starting point.
    """

    _tlkit_distributed = True
    _compression: Any
    _names: dict[torch.Tensor, str]
    _passes: int

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed before a step."""
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change `backward_passes_per_step`.

        Raises:
            ValueError: not positive.
        """
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._passes = passes

    def synchronize(self) -> None:
        """Nothing to do: gradients stay each rank's own."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Not possible: the reduction is part of the step.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step locally, combine the differences, and go there."""
        parameters = list(self._names)
        with torch.no_grad():
            starts = [parameter.detach().clone() for parameter in parameters]
        with instrument.optimizer_span(self):
            result = super().step(closure)
            with torch.no_grad():
                sent, contexts = [], []
                for parameter, start in zip(parameters, starts, strict=True):
                    compressed, context = self._compression.compress(parameter.detach() - start)
                    sent.append(compressed.contiguous())
                    contexts.append(context)
            with calling("gradient", located=False):
                reduced = synchronize(grouped_allreduce_async_(sent, name="adasum.delta", op=Adasum))
            with torch.no_grad():
                for parameter, start, delta, context in zip(parameters, starts, reduced, contexts, strict=True):
                    parameter.copy_(start + self._compression.decompress(delta, context))
        instrument.step_boundary(self)
        return result
