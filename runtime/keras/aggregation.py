"""Gradients that are added up over several passes before they are reduced."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from .backends import GradientReducer


class Aggregation:
    """Adds up gradients on this rank; every `passes`-th time they are reduced and applied."""

    def __init__(self, passes: int, *, average: bool) -> None:
        """Prepare; `build` makes the variables.

        Args:
            passes: gradients that are added up.
            average: whether the sum is divided by their number.
        """
        self._passes, self._average = passes, average
        self.counter: Any = 0
        """Gradients that have been added up since the last reduction."""
        self._sums: list[Any] = []
        self._places: dict[int, int] = {}

    @property
    def variables(self) -> list[Any]:
        """What an optimizer without aggregation does not have."""
        return [self.counter, *self._sums] if self._sums else []

    def build(self, optimizer: Any) -> None:
        """Make the variables, among the optimizer's own: on JAX nothing else lasts from step to step."""
        if self._sums:
            return
        variables = optimizer._trainable_variables  # noqa: SLF001  there is no other way to them
        self.counter = optimizer.add_variable(shape=(), dtype="int", name="aggregation_counter")
        self._sums = [
            optimizer.add_variable_from_reference(variable, name="aggregated_gradient") for variable in variables
        ]
        self._places = {id(variable): place for place, variable in enumerate(variables)}

    def apply(
        self,
        optimizer: Any,
        reducer: GradientReducer,
        apply: Callable[[Sequence[Any], Sequence[Any]], None],
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> None:
        """Take gradients in, and apply their sums if they are enough.

        Args:
            optimizer: the one that is wrapped, whose step goes on in any case.
            reducer: reduces the sums over all ranks.
            apply: the plain optimizer's `apply`.
            gradients: of this pass.
            variables: theirs.

        Raises:
            ValueError: a gradient is sparse.
        """
        there = [place for place, gradient in enumerate(gradients) if gradient is not None]
        dense = [self._dense(gradients[place], reducer) for place in there]
        chosen = [variables[place] for place in there]
        sums = [self._sums[self._places[id(variable)]] for variable in chosen]
        # Of this pass, whatever is assigned below.
        due = ops.equal(ops.add(ops.convert_to_tensor(self.counter), 1), self._passes)
        totals = [ops.add(ops.convert_to_tensor(kept), gradient) for kept, gradient in zip(sums, dense, strict=True)]
        ready = [ops.divide(total, self._passes) for total in totals] if self._average else totals
        if keras.backend.backend() == "jax":
            self._select(optimizer, reducer, apply, due, (ready, totals, sums, chosen))
            return

        def flush() -> None:
            # Zeros are assigned, never multiplied: an infinite gradient would stay.
            for kept in sums:
                kept.assign(ops.zeros(kept.shape, dtype=kept.dtype))
            self.counter.assign(0)
            apply(reducer.reduce(ready, chosen), chosen)

        def wait() -> None:
            for kept, total in zip(sums, totals, strict=True):
                kept.assign(total)
            self.counter.assign_add(1)
            optimizer._iterations.assign_add(1)  # noqa: SLF001  `iterations` may be computed from it

        ops.cond(due, flush, wait)

    @staticmethod
    def _dense(gradient: Any, reducer: Any) -> Any:
        if type(gradient).__name__ != "IndexedSlices":
            return gradient
        settings = getattr(reducer, "settings", reducer)
        if not settings.sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        return ops.convert_to_tensor(gradient)

    def _select(
        self,
        optimizer: Any,
        reducer: GradientReducer,
        apply: Callable[[Sequence[Any], Sequence[Any]], None],
        due: Any,
        parts: tuple[list[Any], list[Any], list[Any], list[Any]],
    ) -> None:
        """On JAX variables cannot be assigned on a condition: both ways are computed, and one is chosen."""
        ready, totals, sums, chosen = parts
        own = {id(variable) for variable in self.variables}
        state = [*chosen, *(variable for variable in optimizer.variables if id(variable) not in own)]
        before = [ops.convert_to_tensor(variable) for variable in state]
        apply(reducer.reduce_if(due, ready, chosen), chosen)
        for variable, value in zip(state, before, strict=True):
            if variable is not optimizer._iterations:  # noqa: SLF001  it goes on
                variable.assign(ops.where(due, ops.convert_to_tensor(variable), value))
        for kept, total in zip(sums, totals, strict=True):
            kept.assign(ops.where(due, ops.zeros_like(total), total))
        counter = ops.convert_to_tensor(self.counter)
        self.counter.assign(ops.where(due, ops.zeros_like(counter), ops.add(counter, 1)))
