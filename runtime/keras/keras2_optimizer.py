"""Optimizers of Keras 2 (tf-keras) whose gradients are reduced over all ranks before they are applied.

Its optimizers have a place for that: `aggregate_gradients`, or `_aggregate_gradients` of the older ones
(`keras.optimizers.legacy`), where a strategy of TensorFlow would add up what its replicas have.  `minimize`, `apply_gradients`,
`fit`, and what scales the loss, before it looks for infinities, all come through there; clipping and weight decay come after it.
"""

import copy
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_keras import mixed_precision, optimizers

from .backends import GradientReducer, make_reducer

_Pairs = Sequence[tuple[Any, Any]]


class Aggregation:
    """Adds up gradients on this rank; every `passes`-th time they are reduced and applied."""

    def __init__(self, passes: int, *, average: bool, sparse_as_dense: bool) -> None:
        """Prepare; the variables are made with the first gradients.

        Args:
            passes: gradients that are added up.
            average: whether the sum is divided by their number.
            sparse_as_dense: whether sparse gradients may be made dense, without which they cannot be added up.
        """
        self._passes, self._average, self._sparse_as_dense = passes, average, sparse_as_dense
        self.counter: Any = 0
        """Gradients that have been added up since the last reduction."""
        self._sums: dict[int, Any] = {}

    def apply(self, optimizer: Any, plain_apply: Any, pairs: _Pairs) -> Any:
        """Take gradients in, and apply their sums if they are enough.

        Args:
            optimizer: the one that is wrapped, whose step goes on in any case.
            plain_apply: reduces and applies pairs of gradients and variables.
            pairs: of this pass; those without a gradient are left out.

        Raises:
            ValueError: a gradient is sparse.
        """
        there = [(self._dense(gradient), variable) for gradient, variable in pairs if gradient is not None]
        variables = [variable for _, variable in there]
        with tf.init_scope():  # nothing can be made inside of a condition
            _build(optimizer, variables)
            self._build(variables)
        sums = [self._sums[id(variable)] for variable in variables]
        totals = [kept + gradient for kept, (gradient, _) in zip(sums, there, strict=True)]
        ready = [total / self._passes for total in totals] if self._average else totals

        def flush() -> Any:
            # Zeros are assigned, never multiplied: an infinite gradient would stay.
            for kept in sums:
                kept.assign(tf.zeros_like(kept))
            self.counter.assign(0)
            plain_apply(list(zip(ready, variables, strict=True)))
            return tf.identity(optimizer.iterations)

        def wait() -> Any:
            for kept, total in zip(sums, totals, strict=True):
                kept.assign(total)
            self.counter.assign_add(1)
            optimizer.iterations.assign_add(1)
            return tf.identity(optimizer.iterations)

        return tf.cond(tf.equal(self.counter + 1, self._passes), flush, wait)

    def _build(self, variables: Sequence[Any]) -> None:
        if not self._sums:
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int64, name="aggregation_counter")
        for variable in variables:
            if id(variable) not in self._sums:
                self._sums[id(variable)] = tf.Variable(tf.zeros_like(variable), trainable=False)

    def _dense(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)


class Distributed:
    """Mixed in front of the user's optimizer class."""

    _tlkit_distributed = True
    _arguments: dict[str, Any]
    """How it was wrapped, for copies that are made from its config."""
    _plain_class: type
    """The class of what was wrapped."""
    _reducer: GradientReducer
    _aggregation: Aggregation | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make an optimizer as its own class does."""
        super().__init__(*args, **kwargs)
        self._attach_reducer()

    def _attach_reducer(self) -> None:
        arguments = dict(self._arguments)
        passes, average = arguments.pop("backward_passes_per_step"), arguments.pop("average_aggregated_gradients")
        aggregation = Aggregation(passes, average=average, sparse_as_dense=arguments["sparse_as_dense"])
        # Past Keras, which would take what is held here for its own.
        object.__setattr__(self, "_reducer", make_reducer(**arguments))
        object.__setattr__(self, "_aggregation", aggregation if passes > 1 else None)

    @property
    def _agg_helper(self) -> Aggregation | None:
        """Horovod's name for what adds up gradients, whose `counter` scripts read."""
        return self._aggregation

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable on its rank."""
        self._reducer.local.add(var)

    def aggregate_gradients(self, grads_and_vars: _Pairs) -> list[tuple[Any, Any]]:
        """Reduce gradients over all ranks."""
        pairs = list(grads_and_vars)
        if not pairs:
            return []
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(self._reducer.reduce(gradients, variables), variables, strict=True))

    _aggregate_gradients = aggregate_gradients

    def apply_gradients(self, grads_and_vars: _Pairs, *args: Any, **kwargs: Any) -> Any:
        """Reduce gradients over all ranks, unless the caller has, and update the variables with them."""
        apply, pairs = super().apply_gradients, list(grads_and_vars)  # type: ignore[misc]
        if self._aggregation is None or not pairs:
            return apply(pairs, *args, **kwargs)
        return self._aggregation.apply(self, lambda summed: apply(summed, *args, **kwargs), pairs)


def is_optimizer(value: Any) -> bool:
    """Whether it can be wrapped."""
    return isinstance(value, (optimizers.Optimizer, optimizers.legacy.Optimizer))


def _build(optimizer: Any, variables: Sequence[Any]) -> None:
    if isinstance(optimizer, optimizers.legacy.Optimizer):
        optimizer._create_all_weights(variables)  # noqa: SLF001  the older ones have no other way
    else:
        optimizer.build(variables)


def _is_built(optimizer: Any) -> bool:
    if isinstance(optimizer, optimizers.legacy.Optimizer):
        return bool(optimizer.get_weights())
    return bool(getattr(optimizer, "_built", False))


def wrap(optimizer: Any, arguments: dict[str, Any], name: str | None = None) -> Any:
    """An optimizer of a new class that has the name of the original's class and derives from it.

    What scales the loss stays outermost: it asks what it holds to reduce, and then looks for infinities.  An optimizer that has
    learned something shares its variables with the original.

    Args:
        optimizer: of Keras 2.
        arguments: of `make_reducer`, and of the aggregation.
        name: of the new optimizer; None for the original's.
    """
    if isinstance(optimizer, mixed_precision.LossScaleOptimizer):
        inner, scaling = wrap(optimizer.inner_optimizer, arguments, name), copy.copy(optimizer)
        object.__setattr__(scaling, "_optimizer", inner)
        object.__setattr__(scaling, "register_local_var", inner.register_local_var)
        return scaling
    base = type(optimizer)
    if issubclass(base, Distributed):
        base = base._plain_class  # noqa: SLF001  of two wrappers only the outer one may reduce
    contents = {
        "__module__": base.__module__,
        "__doc__": base.__doc__,
        "_arguments": arguments,
        "_plain_class": base,
    }
    new_class: Any = type(base.__name__, (Distributed, base), contents)
    if _is_built(optimizer):
        distributed = copy.copy(optimizer)
        object.__setattr__(distributed, "__class__", new_class)
        distributed._attach_reducer()  # noqa: SLF001  ours
        return distributed
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    return new_class.from_config(config)
