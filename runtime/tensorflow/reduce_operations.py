"""Reductions of TensorFlow's tensors: allreduce and reducescatter, single, grouped and sparse."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..core.arguments import Average, resolve_op
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, global_process_set
from ..torch import gathering as torch_gathering
from ..torch import reduce_operations as torch_reductions
from ..torch import scattering as torch_scattering
from ..torch.flat import gather_sparse
from .compression import Compression
from .operands import (
    check_dtype,
    compress_all,
    decompress_all,
    differentiable,
    set_size,
    to_tensor,
    to_tensors,
)
from .running import public, require_registered, rows_unknown, run, settle_name
from .values import REDUCIBLE, SCATTERABLE, widened

Scales = tuple[float, float]


def _reduce(
    tensors: Sequence[Any], name: str | None, op: ReduceOp, scales: Scales, process_set: ProcessSet
) -> list[Any]:
    """Reduce dense tensors, as a group if there are several."""

    def body(given: list[Any]) -> list[Any]:
        wide = [widened(tensor) for tensor in given]
        if len(wide) == 1:
            reduced = [torch_reductions.allreduce(wide[0], None, name, None, int(op), *scales, process_set)]
        else:
            reduced = torch_reductions.grouped_allreduce(wide, None, name, None, int(op), *scales, process_set)
        return [result.to(tensor.dtype) for result, tensor in zip(reduced, given, strict=True)]

    def forward(*inputs: Any) -> list[Any]:
        return run(body, inputs, [(tensor.dtype, tensor.shape) for tensor in inputs])

    def backward(*upstream: Any, results: Any) -> list[Any]:
        del results
        return _reduce(list(upstream), f"{name}.gradient" if name else None, op, scales, process_set)

    return differentiable(forward, backward, tensors)


def check_sparse(op: ReduceOp, scales: Scales) -> None:
    """Raise for what cannot be done with rows.

    Raises:
        NotImplementedError: it cannot.
    """
    if op is ReduceOp.ADASUM:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please pass sparse_as_dense=True "
            "to DistributedOptimizer"
        )
    if op not in {ReduceOp.AVERAGE, ReduceOp.SUM}:
        raise NotImplementedError("Only Sum and Average are supported for tf.IndexedSlices")
    if scales != (1.0, 1.0):
        raise NotImplementedError("prescale_factor and postscale_factor are not supported for tf.IndexedSlices")


def _reduce_slices(
    slices: Sequence[Any], name: str | None, op: ReduceOp, scales: Scales, process_set: ProcessSet
) -> list[Any]:
    """Put the rows of all ranks behind each other; equal rows stay, since whoever uses them adds them up."""
    check_sparse(op, scales)
    names = [f"{name or 'slices'}.{number}" if len(slices) > 1 or not name else name for number in range(len(slices))]
    gather = gather_sparse(names, average=op is ReduceOp.AVERAGE, process_set=process_set)
    flat = [tensor for each in slices for tensor in (to_tensor(each.values), to_tensor(each.indices))]

    def forward(*inputs: Any) -> list[Any]:
        return run(gather, inputs, [(tensor.dtype, rows_unknown(tensor)) for tensor in inputs])

    def backward(*upstream: Any, results: Any) -> list[Any]:
        del results
        made: list[Any] = []
        for number, values in enumerate(flat[::2]):
            rows = gradient_of_gathering([upstream[2 * number]], [values], f"{names[number]}.gradient", process_set)
            made += [rows[0] if op is ReduceOp.AVERAGE else rows[0] * set_size(process_set), None]
        return made

    gathered = differentiable(forward, backward, flat)
    return [
        tf.IndexedSlices(values, indices, each.dense_shape)
        for values, indices, each in zip(gathered[::2], gathered[1::2], slices, strict=True)
    ]


def gradient_of_gathering(
    upstream: Sequence[Any], inputs: Sequence[Any], name: str | None, process_set: ProcessSet
) -> list[Any]:
    """Gradients of a gathering: averaged over the ranks, and cut to this rank's rows."""

    def body(given: list[Any]) -> list[Any]:
        count = len(upstream)
        rows = given[count].reshape(1, count)
        of_all = torch_gathering.allgather(rows, f"{name}.rows" if name else None, process_set)
        starts = of_all[: process_set.rank()].sum(dim=0).tolist()
        reduced = torch_reductions.grouped_allreduce(given[:count], name=name, process_set=process_set)
        mine = zip(reduced, starts, rows[0].tolist(), strict=True)
        return [whole.narrow(0, start, length).contiguous() for whole, start, length in mine]

    lengths = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in inputs])
    return run(body, [*upstream, lengths], [(tensor.dtype, tensor.shape) for tensor in inputs])


@public  # type: ignore[untyped-decorator]
def allreduce(
    tensor: Any,
    average: bool | None = None,  # noqa: FBT001  Horovod's signature
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Reduce `tensor`, which may be a `tf.IndexedSlices`, over all ranks; differentiable.

    Args:
        device_dense: taken for compatibility; the reduction is on the host.
        device_sparse: likewise.
        ignore_name_scope: whether the name scope is no part of the operation's name.
    """
    del device_dense, device_sparse
    resolved, scales = resolve_op(op, average, process_set), (prescale_factor, postscale_factor)
    require_registered(process_set)
    if isinstance(tensor, tf.IndexedSlices):
        name = settle_name("Allreduce", name, [tensor.values], ignore_name_scope=ignore_name_scope)
        return _reduce_slices([tensor], name, resolved, scales, process_set)[0]
    tensor = to_tensor(tensor)
    name = settle_name("Allreduce", name, [tensor], ignore_name_scope=ignore_name_scope)
    sent, contexts = compress_all([tensor], compression)
    check_dtype(sent, REDUCIBLE, "allreduce")
    return decompress_all(_reduce(sent, name, resolved, scales, process_set), contexts, compression)[0]


@public  # type: ignore[untyped-decorator]
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,  # noqa: FBT001
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002
    name: str | None = None,
) -> Any:
    """Reduce several tensors, which become ready together; differentiable.  Dense and sparse ones may be mixed."""
    del device_dense, device_sparse
    if isinstance(tensors, Sequence) and not tensors:
        return tensors
    resolved, scales = resolve_op(op, average, process_set), (prescale_factor, postscale_factor)
    require_registered(process_set)
    given = to_tensors(tensors, "grouped_allreduce")
    if not given:
        return given
    named = [tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor for tensor in given]
    name = settle_name("GroupedAllreduce", name, named, ignore_name_scope=ignore_name_scope)
    sparse = [place for place, tensor in enumerate(given) if isinstance(tensor, tf.IndexedSlices)]
    if sparse:
        check_sparse(resolved, scales)
    dense = [place for place in range(len(given)) if place not in sparse]
    results: list[Any] = list(given)
    if dense:
        sent, contexts = compress_all([given[place] for place in dense], compression)
        check_dtype(sent, REDUCIBLE, "grouped_allreduce")
        reduced = decompress_all(_reduce(sent, name, resolved, scales, process_set), contexts, compression)
        for place, tensor in zip(dense, reduced, strict=True):
            results[place] = tensor
    if sparse:
        gathered = _reduce_slices([given[place] for place in sparse], name, resolved, scales, process_set)
        for place, slices in zip(sparse, gathered, strict=True):
            results[place] = slices
    return results


def _scatter(
    tensors: Sequence[Any], name: str | None, op: ReduceOp, scales: Scales, process_set: ProcessSet
) -> list[Any]:
    def body(given: list[Any]) -> Any:
        arguments = (None, int(op), process_set, *scales)
        if len(given) == 1:
            return [torch_scattering.reducescatter(given[0], name, *arguments)]
        return torch_scattering.grouped_reducescatter(given, name, *arguments)

    def forward(*inputs: Any) -> list[Any]:
        return run(body, inputs, [(tensor.dtype, rows_unknown(tensor)) for tensor in inputs])

    def backward(*upstream: Any, results: Any) -> list[Any]:
        del results
        # Horovod's convention: the gradient of a sum is that of an average times the number of ranks.
        factor = scales[0] * scales[1] * (set_size(process_set) if op is ReduceOp.SUM else 1)

        def gather(given: list[Any]) -> Any:
            gathered = torch_gathering.grouped_allgather(given, f"{name}.gradient" if name else None, process_set)
            return [whole if factor == 1.0 else whole * factor for whole in gathered]

        return run(gather, upstream, [(tensor.dtype, tensor.shape) for tensor in tensors])

    return differentiable(forward, backward, tensors)


def _check_scatter(tensors: Sequence[Any], op: int, process_set: ProcessSet) -> ReduceOp:
    require_registered(process_set)
    check_dtype(tensors, SCATTERABLE, "reducescatter")
    if any(tensor.shape.rank == 0 for tensor in tensors):
        raise ValueError("Reducescatter does not support scalar inputs")
    resolved = resolve_op(op, None, process_set)
    if resolved not in {ReduceOp.AVERAGE, ReduceOp.SUM}:
        raise NotImplementedError("Reducescatter currently only supports AVERAGE and SUM.")
    return resolved


@public  # type: ignore[untyped-decorator]
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002  Horovod's signature
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce `tensor` over all ranks and return this rank's rows of the result; differentiable."""
    del device_dense
    tensor = to_tensor(tensor)
    name = settle_name("Reducescatter", name, [tensor], ignore_name_scope=ignore_name_scope)
    sent, contexts = compress_all([tensor], compression)
    resolved = _check_scatter(sent, op, process_set)
    scattered = _scatter(sent, name, resolved, (prescale_factor, postscale_factor), process_set)
    return decompress_all(scattered, contexts, compression)[0]


@public  # type: ignore[untyped-decorator]
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """Reduce and scatter several tensors, which become ready together; differentiable."""
    del device_dense
    given = to_tensors(tensors, "grouped_reducescatter")
    if not given:
        return tensors
    name = settle_name("GroupedReducescatter", name, given)
    sent, contexts = compress_all(given, compression)
    resolved = _check_scatter(sent, op, process_set)
    scattered = _scatter(sent, name, resolved, (prescale_factor, postscale_factor), process_set)
    return decompress_all(scattered, contexts, compression)
