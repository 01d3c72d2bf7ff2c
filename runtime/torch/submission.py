"""From a call of `hvd` to the runtime and back: checks, names, handles."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from .. import engine
from ..control.messages import Request
from ..errors import NOT_INITIALIZED, HorovodInternalError
from ..operations import ReduceOp
from ..process_sets import ProcessSet, require_id
from ..work import Entry, Handle

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


def require_running() -> engine.Engine:
    """The running engine.

    Raises:
        HorovodInternalError: `init` was not called.
    """
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
    running = require_running()
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


def start_allreduce(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    scales: tuple[float, float],
    process_set: ProcessSet,
    *,
    grouped: bool,
) -> int:
    """Submit tensors to be reduced; returns the handle of all of them.

    Args:
        outputs: where the results go; may be `tensors` themselves.
        scales: prescale and postscale factor.
        grouped: whether the user gave a list.
    """
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


def start_single(
    kind: str,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    process_set: ProcessSet,
    root: int = 0,
) -> int:
    """Submit a tensor for anything but a reduction; returns its handle.

    Args:
        output: where the result goes; None if it is allocated when its size is known.
        root: global rank, for a broadcast.
    """
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


def set_result(number: int, to_result: Callable[[Sequence[Entry]], Any]) -> None:
    """Change what `synchronize` makes of an operation's entries."""
    _handles.get(number).to_result = to_result


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
