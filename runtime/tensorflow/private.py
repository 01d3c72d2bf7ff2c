"""Names with an underscore that scripts import from `horovod.tensorflow` all the same: its operations below the public ones.

They take no compression and no `average`, and their default is the sum.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..core.arguments import Average, Sum
from ..core.process_sets import ProcessSet, global_process_set
from .compression import Compression
from .gradients import Gradients, make_settings
from .reduce_operations import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002  Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `allreduce`."""
    return allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `grouped_allreduce`."""
    return grouped_allreduce(
        tensors,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        name=name,
    )


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `reducescatter`."""
    return reducescatter(tensor, op=op, name=name, process_set=process_set, ignore_name_scope=ignore_name_scope)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See `grouped_reducescatter`."""
    del ignore_name_scope  # the public one knows none
    return grouped_reducescatter(tensors, op=op, process_set=process_set, name=name)


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,  # noqa: FBT001, FBT002
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """A function of gradients and their variables that reduces them as a `DistributedGradientTape` does.

    Args:
        name: taken for compatibility; gradients have the names of their variables.
        device_dense: likewise.
        device_sparse: likewise.

    Raises:
        ValueError: an argument makes no sense.
    """
    del name, device_dense, device_sparse
    settings = make_settings(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=0,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=True,
    )
    return Gradients(settings).reduce
