"""`DistributedOptimizer` for Keras: an optimizer whose gradients are reduced over all ranks before it applies them."""

import logging
from collections.abc import Sequence
from typing import Any

from ..core.arguments import Average, Sum
from ..core.process_sets import ProcessSet, global_process_set
from . import compile_guard
from .compression import Compression
from .library import IS_KERAS_2, keras

if IS_KERAS_2:
    from .keras2_optimizer import is_optimizer, wrap
else:
    from .keras3_optimizer import is_optimizer, wrap

_log = logging.getLogger("tlkit.runtime")


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
    """Make an optimizer of Keras reduce its gradients over all ranks: of Keras 3 on TensorFlow, PyTorch and JAX, or of Keras 2.

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
    if not is_optimizer(optimizer):
        module = type(optimizer).__module__
        hint = ": set TF_USE_LEGACY_KERAS=1" if module.startswith("tf_keras.") and not IS_KERAS_2 else ""
        raise ValueError(
            f"{module}.{type(optimizer).__name__} is not an optimizer of Keras {keras.__version__} (a "
            f"{keras.__name__}.optimizers.Optimizer){hint}"
        )
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
    distributed = wrap(optimizer, arguments, name)
    arguments["num_groups"] = 0  # copies shall not warn again
    arguments["groups"] = num_groups if num_groups and groups is None else groups
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
