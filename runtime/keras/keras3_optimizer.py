"""Optimizers of Keras 3 whose gradients are reduced over all ranks before they are applied.

The reduction stands at the top of `apply`, through which `fit`, `apply_gradients` and, on JAX, `stateless_apply` all come: before
clipping, weight decay and moving averages, and before an optimizer that scales the loss looks for infinities, so that all ranks
see the same.
"""

from collections.abc import Sequence
from typing import Any

import keras

from .aggregation import Aggregation
from .backends import GradientReducer, make_reducer


class CallableList(list[Any]):
    """A list that scripts for older versions of Keras may call, which had a method where there is a property now."""

    def __call__(self) -> "CallableList":
        """The list."""
        return self


class Distributed:
    """Mixed in front of the user's optimizer class."""

    _tlkit_distributed = True
    _arguments: dict[str, Any]
    """How it was wrapped, for copies that are made from its config."""
    _plain_class: type
    """The class of what was wrapped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make an optimizer as its own class does."""
        super().__init__(*args, **kwargs)
        arguments = dict(self._arguments)
        passes, average = arguments.pop("backward_passes_per_step"), arguments.pop("average_aggregated_gradients")
        reducer = make_reducer(**arguments)
        # Past Keras, which would take what is held here for its own.
        object.__setattr__(self, "_reducer", reducer)
        object.__setattr__(self, "_aggregation", Aggregation(passes, average=average) if passes > 1 else None)

    _reducer: GradientReducer
    _aggregation: Aggregation | None

    @property
    def _agg_helper(self) -> Aggregation | None:
        """Horovod's name for what adds up gradients, whose `counter` scripts read."""
        return self._aggregation

    @property
    def variables(self) -> CallableList:
        """The optimizer's variables; may be called as well."""
        return CallableList(super().variables)  # type: ignore[misc]

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable on its rank."""
        self._reducer.local.add(var)

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the optimizer's variables."""
        super().build(*args, **kwargs)  # type: ignore[misc]
        if self._aggregation is not None:
            self._aggregation.build(self)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce gradients over all ranks, and update the variables with them."""
        given = list(grads)
        apply = super().apply  # type: ignore[misc]
        if not given:
            return
        itself: Any = self
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not itself.built:
                with keras.name_scope(itself.name):
                    self.build(trainable_variables)
                itself.built = True
        variables = itself._trainable_variables if trainable_variables is None else trainable_variables  # noqa: SLF001
        if self._aggregation is not None:
            self._aggregation.apply(self, self._reducer, apply, given, variables)
            return
        apply(self._reducer.reduce(given, variables), trainable_variables)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """See Keras's; an optimizer that scales the loss does not come to `apply` from here."""
        itself: Any = self
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            grads = self._reducer.reduce(list(grads), itself._trainable_variables)  # noqa: SLF001  as Keras hands it on
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]

    def save_own_variables(self, store: Any) -> None:
        """Save what the plain optimizer would, which can load it."""
        for number, variable in enumerate(self._plain_variables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load what this or the plain optimizer has saved."""
        plain = self._plain_variables()
        if len(store.keys()) != len(plain):
            # Which says what is wrong.
            super().load_own_variables(store)  # type: ignore[misc]
            return
        for number, variable in enumerate(plain):
            variable.assign(store[str(number)])

    def _plain_variables(self) -> list[Any]:
        extra = set() if self._aggregation is None else {id(variable) for variable in self._aggregation.variables}
        return [variable for variable in self.variables if id(variable) not in extra]


def _module_of(base: type) -> str:
    """The module under which Keras stores the class: of an optimizer of Keras one that all backends have."""
    for each in base.__mro__:
        if each.__name__ == base.__name__ and each.__module__.startswith("keras.src.optimizers."):
            return each.__module__
    return base.__module__


def is_optimizer(value: Any) -> bool:
    """Whether it can be wrapped."""
    return isinstance(value, keras.optimizers.Optimizer)


def wrap(optimizer: Any, arguments: dict[str, Any], name: str | None = None) -> Any:
    """An optimizer of a new class that has the name of the original's class and derives from it.

    What the original has learned, and its step, are copied.

    Args:
        optimizer: of Keras.
        arguments: of `make_reducer`, and of the aggregation.
        name: of the new optimizer; None for the original's.
    """
    if isinstance(getattr(optimizer, "inner_optimizer", None), Distributed):
        return around_loss_scale(optimizer)
    base = type(optimizer)
    if issubclass(base, Distributed):
        base = base._plain_class  # noqa: SLF001  of two wrappers only the outer one may reduce
    contents = {"__module__": _module_of(base), "__doc__": base.__doc__, "_arguments": arguments, "_plain_class": base}
    new_class: Any = type(base.__name__, (Distributed, base), contents)
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    distributed = new_class.from_config(config)
    if optimizer.built:
        distributed.build(optimizer._trainable_variables)  # noqa: SLF001  there is no other way to them
        of_original = optimizer._plain_variables() if isinstance(optimizer, Distributed) else optimizer.variables  # noqa: SLF001
        for mine, theirs in zip(distributed._plain_variables(), of_original, strict=True):  # noqa: SLF001
            mine.assign(theirs)
    return distributed


def around_loss_scale(optimizer: Any) -> Any:
    """The wrapper of an optimizer inside of one that scales the loss, put around both.

    Inside, ranks would look for infinities before the reduction, come to different answers, and wait for each other for ever.
    """
    inner = optimizer.inner_optimizer
    plain = inner._plain_class.from_config(inner.get_config())  # noqa: SLF001  ours
    config = optimizer.get_config()
    config["inner_optimizer"] = keras.saving.serialize_keras_object(plain)
    distributed = wrap(type(optimizer).from_config(config), inner._arguments)  # noqa: SLF001
    for variable in inner._reducer.local.all():  # noqa: SLF001
        distributed.register_local_var(variable)
    return distributed
