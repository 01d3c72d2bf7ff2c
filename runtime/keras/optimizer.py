"""`DistributedOptimizer` for Keras 3: an optimizer whose gradients are reduced over all ranks before it applies them.

The reduction stands at the top of `apply`, through which `fit`, `apply_gradients` and, on JAX, `stateless_apply` all come: before
clipping, weight decay and moving averages, and before an optimizer that scales the loss looks for infinities, so that all ranks
see the same.
"""

import logging
from collections.abc import Sequence
from typing import Any

import keras

from ..core.arguments import Average, Sum
from ..core.process_sets import ProcessSet, global_process_set
from . import compile_guard
from .aggregation import Aggregation
from .backends import GradientReducer, make_reducer
from .compression import Compression

_log = logging.getLogger("tlkit.runtime")


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


def wrap(optimizer: Any, arguments: dict[str, Any], name: str | None = None) -> Any:
    """An optimizer of a new class that has the name of the original's class and derives from it.

    What the original has learned, and its step, are copied.

    Args:
        optimizer: of Keras.
        arguments: of `make_reducer`, and of the aggregation.
        name: of the new optimizer; None for the original's.
    """
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


def DistributedOptimizer(  # noqa: N802  Horovod's name and arguments
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,  # noqa: FBT001, FBT002
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,  # noqa: FBT001, FBT002
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,  # noqa: FBT001, FBT002
) -> Any:
    """Make an optimizer of Keras 3 reduce its gradients over all ranks, on TensorFlow, PyTorch and JAX.

    Returns an optimizer of a new class that has the name of the original's class and derives from it, with the same settings,
    and with its variables if it has any.

    Args:
        optimizer: of Keras.
        name: of the new optimizer; None for the original's.
        device_dense: taken for compatibility.
        device_sparse: likewise.
        compression: how gradients are sent, one of `Compression`.
        sparse_as_dense: turn sparse gradients into dense ones first.
        gradient_predivide_factor: divide by it before the sum and multiply after; for Average only.
        op: Average or Sum.
        backward_passes_per_step: how many gradients to add up locally before a reduction.
        average_aggregated_gradients: whether what was added up locally is divided by the number of passes.
        num_groups: older name of `groups` as a number.
        groups: reduce gradients together, in so many groups or in those of the given variables.
        process_set: the ranks over which it is reduced; on others gradients stay as they are.
        scale_local_gradients: whether gradients of local variables are divided by the number of ranks.

    Raises:
        ValueError: an argument makes no sense.
    """
    del device_dense, device_sparse
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"{type(optimizer).__name__} is not an optimizer of Keras 3 (a keras.optimizers.Optimizer)")
    if op not in {Average, Sum}:
        raise ValueError("op currently only supports Average and Sum")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps and backward_passes_per_step > 1:
        raise ValueError(
            f"gradient_accumulation_steps={steps} of the optimizer and backward_passes_per_step={backward_passes_per_step} do "
            "the same: give one of them; the latter reduces once for all passes"
        )
    if steps:
        _log.warning(
            "gradient_accumulation_steps=%d: gradients are reduced in every pass; backward_passes_per_step=%d of "
            "hvd.DistributedOptimizer in its place reduces once for all",
            steps,
            steps,
        )
    inner = getattr(optimizer, "inner_optimizer", None)
    arguments = {
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "gradient_predivide_factor": gradient_predivide_factor,
        "op": op,
        "num_groups": num_groups,
        "groups": groups,
        "process_set": process_set,
        "scale_local_gradients": scale_local_gradients,
        "backward_passes_per_step": backward_passes_per_step,
        "average_aggregated_gradients": average_aggregated_gradients,
    }
    compile_guard.install()
    if isinstance(inner, Distributed):
        return around_loss_scale(optimizer)
    distributed = wrap(optimizer, arguments, name)
    arguments["num_groups"] = 0  # copies shall not warn again
    arguments["groups"] = num_groups if num_groups and groups is None else groups
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


def PartialDistributedOptimizer(  # noqa: N802  Horovod's name and arguments
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,  # noqa: FBT001, FBT002
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,  # noqa: FBT001, FBT002
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,  # noqa: FBT001, FBT002
) -> Any:
    """A `DistributedOptimizer` that leaves the gradients of some layers, which have been built, on their rank.

    Args:
        local_layers: one layer or several.

    Raises:
        ValueError: `local_layers` are no layers, or another argument makes no sense.
    """
    layers = [] if local_layers is None else local_layers
    if isinstance(layers, keras.layers.Layer):
        layers = [layers]
    if not isinstance(layers, (list, tuple, set)) or not all(isinstance(each, keras.layers.Layer) for each in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    distributed = DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            distributed.register_local_var(variable)
    return distributed
