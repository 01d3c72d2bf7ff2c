"""The collectives of `hvd`.  The module has Horovod's name, since scripts import it; the transport is whatever is there."""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from .. import engine
from ..control.messages import Request
from ..errors import NOT_INITIALIZED, HorovodInternalError
from ..operations import ReduceOp
from ..process_sets import ProcessSet, global_process_set, require_id
from ..work import Entry, Handle

Average: Final = int(ReduceOp.AVERAGE)
Sum: Final = int(ReduceOp.SUM)
Adasum: Final = int(ReduceOp.ADASUM)
Min: Final = int(ReduceOp.MIN)
Max: Final = int(ReduceOp.MAX)
Product: Final = int(ReduceOp.PRODUCT)

_DTYPE_NAMES: Final = {
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bool: "bool",
}
#: Horovod's set and bfloat16; the rest have no arithmetic that a reduction could use.
_REDUCIBLE: Final = {"int32", "int64", "float16", "bfloat16", "float32", "float64"}


class _Handles:
    """Operations that were started and not asked for yet, by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_number: dict[int, Handle] = {}
        self._last = 0

    def add(self, handle: Handle) -> int:
        with self._lock:
            self._last += 1
            self._by_number[self._last] = handle
            return self._last

    def get(self, number: int) -> Handle:
        try:
            return self._by_number[number]
        except KeyError:
            raise ValueError(f"Handle {number} was not created or has been cleared.") from None

    def remove(self, number: int) -> None:
        self._by_number.pop(number, None)


_handles = _Handles()


class _Unnamed:
    """Numbers for operations without a name, a kind.

    Only operations that were accepted count, so that a call which fails on one rank alone does not put the names of the
    ranks out of step for ever.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def peek(self, kind: str) -> str:
        return f"noname.{self._last.get(kind, 0) + 1}"

    def accept(self, kind: str) -> None:
        self._last[kind] = self._last.get(kind, 0) + 1

    def reset(self) -> None:
        self._last.clear()


_unnamed = _Unnamed()


def reset_names() -> None:
    """Forget the numbers of unnamed operations; all ranks do it when they initialise."""
    _unnamed.reset()


def _running() -> engine.Engine:
    running = engine.current()
    if running is None:
        raise HorovodInternalError(NOT_INITIALIZED)
    return running


def _check(tensor: torch.Tensor, *, reduce: bool) -> str:
    """The name of the tensor's dtype, if the tensor can be sent as it is."""
    name = _DTYPE_NAMES.get(tensor.dtype)
    if name is None or tensor.is_sparse or (reduce and name not in _REDUCIBLE):
        raise ValueError(f"Tensor type {tensor.type()} is not supported.")
    if not tensor.is_contiguous():
        raise ValueError("Tensor is required to be contiguous.")
    return name


def _resolve_op(op: int | None, average: bool | None) -> ReduceOp:  # noqa: FBT001  Horovod's older argument
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=4)
        return ReduceOp.AVERAGE if average else ReduceOp.SUM
    resolved = ReduceOp.AVERAGE if op is None else ReduceOp(op)
    if resolved is ReduceOp.ADASUM:
        raise HorovodInternalError("No Adasum operation enabled")
    return resolved


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:  # noqa: FBT001
    """Which operation `op` and the older `average` ask for."""
    return int(_resolve_op(op, average))


def _start(
    group: str,
    name: str | None,
    to_result: Callable[[Sequence[Entry]], Any],
    make: Callable[[str, Handle], list[Entry]],
) -> int:
    """Submit the entries that `make` builds for a full name, and number their handle.

    Args:
        group: what full names begin with: the kind, or `grouped_` and the kind.
    """
    running = _running()
    handle = Handle(to_result)
    entries = make(f"{group}.{name if name is not None else _unnamed.peek(group)}", handle)
    running.submit(entries)
    if name is None:
        _unnamed.accept(group)
    return _handles.add(handle)


def _only_output(entries: Sequence[Entry]) -> torch.Tensor | None:
    return entries[0].output


def _outputs(entries: Sequence[Entry]) -> tuple[torch.Tensor | None, ...]:
    return tuple(entry.output for entry in entries)


def _device(tensor: torch.Tensor) -> str:
    return tensor.device.type


def _start_allreduce(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    scales: tuple[float, float],
    process_set: ProcessSet,
    *,
    grouped: bool,
) -> int:
    dtypes = [_check(tensor, reduce=True) for tensor in tensors]
    if len({tensor.device for tensor in tensors}) > 1:
        raise ValueError("Tensors in list must be on same device")
    set_id = require_id(process_set, "allreduce")
    group = "grouped_allreduce" if grouped else "allreduce"
    count = len(tensors)

    def make(full_name: str, handle: Handle) -> list[Entry]:
        return [
            engine.make_entry(
                Request(
                    name=f"{full_name}_{position}of{count}" if grouped else full_name,
                    kind="allreduce",
                    dtype=dtype,
                    shape=tuple(tensor.shape),
                    op=int(op),
                    prescale=scales[0],
                    postscale=scales[1],
                    process_set=set_id,
                    device=_device(tensor),
                ),
                tensor,
                output,
                handle,
            )
            for position, (tensor, output, dtype) in enumerate(zip(tensors, outputs, dtypes, strict=True), start=1)
        ]

    return _start(group, name, _outputs if grouped else _only_output, make)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce `tensor` over all ranks into a new tensor; `synchronize` the handle for it."""
    tensor = tensor.detach()
    return _start_allreduce(
        [tensor],
        [torch.empty_like(tensor)],
        name,
        _resolve_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        grouped=False,
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce `tensor` over all ranks in place.  Do not touch it before `synchronize`."""
    plain = tensor.detach()
    number = _start_allreduce(
        [plain],
        [plain],
        name,
        _resolve_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        grouped=False,
    )
    _handles.get(number).to_result = lambda _: tensor
    return number


def _apply(function: Any, *arguments: Any) -> Any:
    """Call an autograd function (torch leaves `apply` untyped)."""
    return function.apply(*arguments)


class _Allreduce(torch.autograd.Function):
    """Reduction whose gradient is the same reduction of the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, op: int, *rest: Any) -> Any:
        ctx.arguments = (op, *rest)
        return synchronize(allreduce_async(tensor, None, name, op, *rest))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, *rest = ctx.arguments
        reduced = synchronize(allreduce_async(gradients[0].contiguous(), None, None, op, *rest))
        return reduced, None, None, None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    compression: Any = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce `tensor` over all ranks; differentiable."""
    resolved = int(_resolve_op(op, average))
    context = None
    if compression is not None:
        tensor, context = compression.compress(tensor)
    reduced: torch.Tensor = _apply(_Allreduce, tensor, name, resolved, prescale_factor, postscale_factor, process_set)
    return reduced if compression is None else compression.decompress(reduced, context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce `tensor` over all ranks in place and return it."""
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    reduced: torch.Tensor = synchronize(allreduce_async_(tensor, *arguments))
    return reduced


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce several tensors, which become ready together, into new ones."""
    plain = [tensor.detach() for tensor in tensors]
    return _start_allreduce(
        plain,
        [torch.empty_like(tensor) for tensor in plain],
        name,
        _resolve_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        grouped=True,
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce several tensors, which become ready together, in place."""
    plain = [tensor.detach() for tensor in tensors]
    number = _start_allreduce(
        plain,
        plain,
        name,
        _resolve_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        grouped=True,
    )
    originals = tuple(tensors)
    _handles.get(number).to_result = lambda _: originals
    return number


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    compression: Any = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors; they become ready together."""
    if not tensors:
        return []
    contexts: list[Any] = []
    sent = list(tensors)
    if compression is not None:
        pairs = [compression.compress(tensor) for tensor in tensors]
        sent, contexts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    reduced = list(synchronize(grouped_allreduce_async(sent, *arguments)))
    if compression is None:
        return reduced
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Reduce several tensors in place; they become ready together."""
    if not tensors:
        return ()
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    reduced: tuple[torch.Tensor, ...] = synchronize(grouped_allreduce_async_(tensors, *arguments))
    return reduced


def _start_single(
    kind: str,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    process_set: ProcessSet,
    root: int = 0,
) -> int:
    dtype = _check(tensor, reduce=False)
    set_id = require_id(process_set, kind)

    def make(full_name: str, handle: Handle) -> list[Entry]:
        request = Request(
            name=full_name,
            kind=kind,
            dtype=dtype,
            shape=tuple(tensor.shape),
            root=root,
            process_set=set_id,
            device=_device(tensor),
        )
        return [engine.make_entry(request, tensor, output, handle)]

    return _start(kind, name, _only_output, make)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to concatenate the tensors of all ranks along the first dimension, which may differ by rank."""
    return _start_single("allgather", tensor.detach(), None, name, process_set)


class _Allgather(torch.autograd.Function):
    """Concatenation; its gradient is averaged over the ranks and cut to this rank's rows, as Horovod does."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        return synchronize(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set = ctx.process_set
        gradient = gradients[0].contiguous()
        reduced = synchronize(allreduce_async(gradient, op=Average, process_set=process_set))
        rows = synchronize(allgather_async(torch.tensor([ctx.rows]), process_set=process_set))
        first = int(rows[: process_set.rank()].sum())
        return reduced.narrow(0, first, ctx.rows), None, None


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along the first dimension; differentiable.

    Raises:
        ValueError: the tensor has no dimension.
    """
    if tensor.dim() == 0:
        raise ValueError("allgather needs a tensor with at least one dimension; use tensor.reshape(1)")
    gathered: torch.Tensor = _apply(_Allgather, tensor, name, process_set)
    return gathered


def _check_root(root_rank: int, process_set: ProcessSet) -> None:
    ranks = process_set.ranks
    if ranks is not None and root_rank not in ranks:
        raise ValueError(f"broadcast received invalid root rank {root_rank} for provided process set")


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send `root_rank`'s tensor to all ranks, as a new tensor."""
    _running()
    _check_root(root_rank, process_set)
    tensor = tensor.detach()
    return _start_single("broadcast", tensor, torch.empty_like(tensor), name, process_set, root_rank)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send `root_rank`'s tensor to all ranks, in place."""
    _running()
    _check_root(root_rank, process_set)
    plain = tensor.detach()
    number = _start_single("broadcast", plain, plain, name, process_set, root_rank)
    _handles.get(number).to_result = lambda _: tensor
    return number


class _Broadcast(torch.autograd.Function):
    """Copy of the root's tensor; its gradient is averaged and belongs to the root alone."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].contiguous()
        reduced = synchronize(allreduce_async(gradient, op=Average, process_set=ctx.process_set))
        if global_process_set.rank() != ctx.root_rank:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`root_rank`'s tensor, on all ranks; differentiable."""
    copied: torch.Tensor = _apply(_Broadcast, tensor, root_rank, name, process_set)
    return copied


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite `tensor` with `root_rank`'s, and return it."""
    copied: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return copied


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks are here."""
    synchronize(_start_single("barrier", torch.empty(0), torch.empty(0), None, process_set))


def poll(handle: int) -> bool:
    """Whether the operation has finished.

    Raises:
        ValueError: there is no such operation.
    """
    return _handles.get(handle).done


def synchronize(handle: int) -> Any:
    """Wait for the operation and return its result: a tensor, or a tuple of them for a grouped one.

    Raises:
        ValueError: there is no such operation.
        HorovodInternalError: it failed, on all ranks.
    """
    operation = _handles.get(handle)
    running = engine.current()
    if running is not None:
        running.wait([operation])
    _handles.remove(handle)
    if operation.error is not None:
        raise HorovodInternalError(operation.error)
    return operation.to_result(operation.entries)


def wait_for_all(handles: Sequence[int]) -> None:
    """Wait for several operations as one; their results and errors come from `synchronize`."""
    running = engine.current()
    if running is not None:
        running.wait([_handles.get(handle) for handle in handles])
