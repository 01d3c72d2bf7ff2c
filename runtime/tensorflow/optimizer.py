"""`DistributedOptimizer` of `horovod.tensorflow`: for the optimizers of TensorFlow 1, and the way to those of Keras."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..core.arguments import Adasum, Average
from ..core.process_sets import ProcessSet, global_process_set
from .compression import Compression
from .gradients import Gradients, make_settings


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of TensorFlow 1 whose gradients are reduced over all ranks."""

    def __init__(self, optimizer: Any, name: str, gradients: Gradients, *, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._gradients = gradients

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable on its rank."""
        self._gradients.local.add(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Gradients over all ranks, with their variables."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return []
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(self._gradients.reduce(gradients, variables), variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """See TensorFlow's."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """See TensorFlow's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """See TensorFlow's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """See TensorFlow's."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802  Horovod's name and arguments
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,  # noqa: FBT001, FBT002
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,  # noqa: FBT001, FBT002
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,  # noqa: FBT001, FBT002
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,  # noqa: FBT001, FBT002
) -> Any:
    """Make an optimizer reduce its gradients over all ranks.

    Optimizers of Keras go to `tlkit.runtime.keras.DistributedOptimizer`, with all arguments; those of TensorFlow 1
    (`tf.compat.v1.train.Optimizer`) are wrapped here.

    Args:
        optimizer: of either kind.
        name: of the new optimizer; None for `Distributed` and the class's name.
        use_locking: as for an optimizer of TensorFlow 1.
        device_dense: taken for compatibility; the reduction is on the host.
        device_sparse: likewise.
        compression: how gradients are sent, one of `Compression`.
        sparse_as_dense: turn `tf.IndexedSlices` into dense gradients first.
        backward_passes_per_step: how many gradients to add up locally before a reduction; Keras's optimizers only.
        op: Average or Sum; with TensorFlow 1 also Min, Max and Product.
        gradient_predivide_factor: divide by it before the sum and multiply after; for Average only.
        average_aggregated_gradients: whether what was added up locally is divided by the number of passes.
        num_groups: older name of `groups` as a number.
        groups: reduce gradients together, in so many groups or in those of the given variables.
        process_set: the ranks over which it is reduced.
        scale_local_gradients: whether gradients of local variables are divided by the number of ranks.

    Raises:
        ValueError: an argument makes no sense.
        NotImplementedError: `backward_passes_per_step` or Adasum for an optimizer of TensorFlow 1.
    """
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from ..keras.optimizer import DistributedOptimizer as KerasOptimizer  # noqa: PLC0415  for those who have Keras

        if op == Adasum:
            raise ValueError("op == Adasum is not supported yet with Keras")
        return KerasOptimizer(
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
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if backward_passes_per_step > 1:
        if tf.executing_eagerly():
            raise ValueError(
                "backward_passes_per_step > 1 is not yet supported for tf.compat.v1.train.Optimizer with eager execution."
            )
        raise NotImplementedError("backward_passes_per_step > 1 is for optimizers of Keras")
    if op == Adasum:
        raise NotImplementedError(
            "Adasum is not for optimizers of TensorFlow 1: use hvd.DistributedGradientTape(op=hvd.Adasum)"
        )
    settings = make_settings(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    title = name or f"Distributed{type(optimizer).__name__}"
    return _DistributedOptimizer(optimizer, title, Gradients(settings), use_locking=use_locking)
