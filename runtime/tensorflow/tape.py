"""`DistributedGradientTape`: a gradient tape whose gradients are reduced over all ranks."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import tensorflow as tf

from ..core.arguments import Average
from ..core.process_sets import ProcessSet, global_process_set
from .compression import Compression
from .gradients import Gradients, Reductions, make_settings
from .running import public

Pairs = list[tuple[Any, Any]]

#: Of all tapes, since an eager script wraps a new one every step.
_reductions: Final = Reductions()


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """Mixed in front of the class of the user's tape."""

    _gradients: Gradients

    @public  # type: ignore[untyped-decorator]
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,  # noqa: FBT001, FBT002  Horovod's signature
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Gradients over all ranks, in the structure of `sources`.

        Args:
            target: what is differentiated.
            sources: tensors, variables, or a structure of them.
            output_gradients: as for `tf.GradientTape.gradient`.
            use_generic_names: name the gradients by their places, where the ranks call their variables differently.
            unconnected_gradients: as for `tf.GradientTape.gradient`.
        """
        flat = tf.nest.flatten(sources)
        own = super().gradient(target, flat, output_gradients, unconnected_gradients)
        reduced = self._gradients.reduce(own, flat, generic_names=use_generic_names)
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, var: Any) -> None:
        """Leave the gradient of a variable, or of a tensor, on its rank."""
        self._gradients.local.add(var)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Pairs, Pairs]:
        """Pairs of source and gradient: of local sources, and of the others."""
        flat = tf.nest.flatten(sources)
        gradients = tf.nest.flatten(self.gradient(target, flat, output_gradients, use_generic_names))
        local = self._gradients.local
        pairs = list(zip(flat, gradients, strict=True))
        return [pair for pair in pairs if pair[0] in local], [pair for pair in pairs if pair[0] not in local]


def DistributedGradientTape(  # noqa: N802  Horovod's name and arguments
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,  # noqa: FBT001, FBT002
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,  # noqa: FBT001, FBT002
) -> Any:
    """A tape that has recorded what `gradtape` has, and reduces its gradients over all ranks.

    Args:
        gradtape: a tape, before or after it has recorded.
        device_dense: taken for compatibility; the reduction is on the host.
        device_sparse: likewise.
        compression: how gradients are sent, one of `Compression`.
        sparse_as_dense: turn `tf.IndexedSlices` into dense gradients first.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: divide by it before the sum and multiply after; for Average only.
        num_groups: older name of `groups` as a number.
        groups: reduce gradients together, in so many groups or in those of the given variables.
        process_set: the ranks over which it is reduced; on others gradients stay as they are.
        scale_local_gradients: whether gradients of local sources are divided by the number of ranks.

    Raises:
        ValueError: an argument makes no sense.
    """
    del device_dense, device_sparse
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
    base = type(gradtape)
    new_class = type(base.__name__, (_DistributedGradientTape, base), {})
    distributed: Any = object.__new__(new_class)
    distributed.__dict__.update(gradtape.__dict__)
    distributed._gradients = Gradients(settings, _reductions)  # noqa: SLF001  its maker
    return distributed


def _layers(local_layers: Any) -> list[Any]:
    """Layers of Keras.

    Raises:
        ValueError: it is something else.
    """
    if local_layers is None:
        return []
    layer_class = _layer_class()
    layers = [local_layers] if isinstance(local_layers, layer_class) else local_layers
    if not isinstance(layers, Iterable) or not all(isinstance(layer, layer_class) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return list(layers)


def _layer_class() -> Any:
    return tf.keras.layers.Layer


def PartialDistributedGradientTape(  # noqa: N802  Horovod's name and arguments
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,  # noqa: FBT001, FBT002
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,  # noqa: FBT001, FBT002
) -> Any:
    """A `DistributedGradientTape` that leaves the gradients of some layers, which have been built, on their rank.

    Args:
        local_layers: one layer or several.

    Raises:
        ValueError: `local_layers` are no layers, or another argument makes no sense.
    """
    layers = _layers(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
