"""From a call of `hvd` to the runtime and back: checks, names, handles.

A training submits the same tensors again and again, so what was worked out for a name (its request) is used again if the
tensor still looks the same; that is most of what keeps a call at a few microseconds.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ...timeline.record import recorder
from ..core import engine
from ..core.control.messages import Request
from ..core.errors import NOT_INITIALIZED, HorovodInternalError
from ..core.kinds import Kind
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, require_id
from ..core.work import Entry, Handle
from .data_plane.devices import hand_over_here
from .data_plane.dtypes import DTYPE_NAMES, REDUCIBLE

_handles: dict[int, Handle] = {}
_numbers = itertools.count(1)

#: An attribute of an enum takes longer to find than a name.
_ALLREDUCE: Final = Kind.ALLREDUCE


def _get_handle(number: int) -> Handle:
    try:
        return _handles[number]
    except KeyError:
        raise ValueError(f"Handle {number} was not created or has been cleared.") from None


class _Unnamed:
    """Numbers for operations without a name, a kind and process set.

    Only operations that were accepted count, so that a call which fails on one rank alone does not put the names of the
    ranks out of step for ever.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], int] = {}

    def peek(self, kind: str, process_set: int) -> str:
        return f"noname.{self._last.get((kind, process_set), 0) + 1}"

    def accept(self, kind: str, process_set: int) -> None:
        self._last[kind, process_set] = self._last.get((kind, process_set), 0) + 1

    def reset(self) -> None:
        self._last.clear()

    def reset_global(self) -> None:
        for key in [key for key in self._last if key[1] == 0]:
            del self._last[key]


_unnamed = _Unnamed()


def reset() -> None:
    """Forget the numbers of unnamed operations and all handles; every rank does it when it shuts down."""
    global _numbers  # noqa: PLW0603
    _unnamed.reset()
    _handles.clear()
    _numbers = itertools.count(1)


def reset_after_join() -> None:
    """All ranks begin to count anew: those that had joined have not taken part in what the others called without a name."""
    _unnamed.reset_global()


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
    name = DTYPE_NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided or (reduce and tensor.dtype not in REDUCIBLE):
        raise ValueError(f"Tensor type {tensor.type()} is not supported.")
    if tensor.is_meta:
        raise ValueError("A tensor on the device meta has no values that could be sent.")
    if not tensor.is_contiguous():
        raise ValueError("Tensor is required to be contiguous.")
    return name


def _only_output(entries: Sequence[Entry]) -> torch.Tensor | None:
    output: torch.Tensor | None = entries[0].output
    return output


def _outputs(entries: Sequence[Entry]) -> tuple[torch.Tensor | None, ...]:
    return tuple(entry.output for entry in entries)


def _output_and_received(entries: Sequence[Entry]) -> tuple[torch.Tensor | None, torch.Tensor]:
    return entries[0].output, entries[0].extra


def _extra(entries: Sequence[Entry]) -> Any:
    return entries[0].extra


def _submit(running: engine.Engine, entries: list[Entry], *, waits: bool) -> int:
    """Hand entries of one handle over, and number the handle."""
    running.submit(entries, waits=waits)
    number = next(_numbers)
    _handles[number] = entries[0].handle
    return number


def start_allreduce(
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    op: ReduceOp,
    scales: tuple[float, float],
    process_set: ProcessSet,
    *,
    priority: int = 0,
    waits: bool = False,
    result: torch.Tensor | None = None,
) -> int:
    """Submit a tensor to be reduced; returns its handle.

    Args:
        output: where the result goes; may be `tensor` itself, None for a new tensor.
        scales: prescale and postscale factor.
        waits: whether the caller synchronises at once.
        result: what `synchronize` returns; None for the output.
    """
    running = require_running()
    set_id = require_id(process_set, "allreduce")
    record = None
    if name is None:
        full_name = f"allreduce.{_unnamed.peek('allreduce', set_id)}"
    else:
        full_name = "allreduce." + (name if name.isascii() else _sendable(name))
        record = running.control.tensor_table.record(set_id, full_name)
    known = None if record is None else record.request
    is_cpu = tensor.is_cpu
    if (
        known is not None
        and known.shape == tensor.shape
        and known.dtype == DTYPE_NAMES.get(tensor.dtype)
        and known.op == op
        and known.prescale == scales[0]
        and known.postscale == scales[1]
        and known.priority == priority
        and known.kind is _ALLREDUCE
        and known.device == ("cpu" if is_cpu else tensor.device.type)
        and tensor.is_contiguous()
    ):
        request = known
    else:
        request = _reduction("allreduce", full_name, tensor, op, scales, set_id, priority)
    if output is None:
        output = torch.empty_like(tensor)
    handle = Handle(_only_output if result is None else lambda _: result)
    entry = Entry(request, tensor, output, handle, recorder.now_ns())
    if record is not None and request is known and is_cpu and not waits:
        running.submit_again(record, entry)
        number = next(_numbers)
        _handles[number] = handle
        return number
    number = _submit(running, [entry], waits=waits)
    if name is None:
        _unnamed.accept("allreduce", set_id)
    return number


def _reduction(
    kind: str,
    full_name: str,
    tensor: torch.Tensor,
    op: ReduceOp,
    scales: tuple[float, float],
    set_id: int,
    priority: int,
) -> Request:
    return Request(
        name=full_name,
        kind=Kind(kind),
        dtype=_check(tensor, reduce=True),
        shape=tuple(tensor.shape),
        op=int(op),
        prescale=scales[0],
        postscale=scales[1],
        process_set=set_id,
        device=tensor.device.type,
        priority=priority,
    )


def start_reductions(
    kind: str,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor | None],
    name: str | None,
    op: ReduceOp,
    scales: tuple[float, float],
    process_set: ProcessSet,
    *,
    grouped: bool = True,
    priority: int = 0,
    waits: bool = False,
    result: Any = None,
) -> int:
    """Submit several tensors to be reduced (`allreduce` or `reducescatter`); returns the handle of all of them.

    Args:
        outputs: where the results go; None for those that are allocated when they are known.
        result: what `synchronize` returns; None for the outputs, as a tuple if `grouped`.
    """
    running = require_running()
    set_id = require_id(process_set, kind)
    if len({tensor.device for tensor in tensors}) > 1:
        raise ValueError("Tensors in list must be on same device")
    names, prefix = _names(kind, name, set_id, len(tensors), grouped=grouped)
    to_result: Callable[[Sequence[Entry]], Any] = _outputs if grouped else _only_output
    handle = Handle(to_result if result is None else lambda _: result)
    now_ns = recorder.now_ns()
    entries = [
        Entry(_reduction(kind, full_name, tensor, op, scales, set_id, priority), tensor, output, handle, now_ns)
        for full_name, tensor, output in zip(names, tensors, outputs, strict=True)
    ]
    number = _submit(running, entries, waits=waits)
    if name is None:
        _unnamed.accept(prefix, set_id)
    return number


def _sendable(name: str) -> str:
    """A name as it goes to the other ranks: half a character, which UTF-8 cannot hold, is written out."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def _names(kind: str, name: str | None, set_id: int, count: int, *, grouped: bool) -> tuple[list[str], str]:
    """Full names of the tensors of a call, and what they begin with."""
    prefix = f"grouped_{kind}" if grouped else kind
    full_name = f"{prefix}.{_sendable(name) if name is not None else _unnamed.peek(prefix, set_id)}"
    if not grouped:
        return [full_name], prefix
    return [f"{full_name}_{position}of{count}" for position in range(1, count + 1)], prefix


def start_plain(
    kind: str,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor | None],
    name: str | None,
    process_set: ProcessSet,
    *,
    root: int = 0,
    extra: Any = None,
    grouped: bool = False,
    waits: bool = False,
    result: Any = None,
) -> int:
    """Submit tensors for anything but a reduction; returns their handle.

    Args:
        outputs: where the results go; None for one that is allocated when its size is known.
        root: global rank, for a broadcast.
        extra: splits of an alltoall.
        result: what `synchronize` returns; None for what the kind yields.
    """
    running = require_running()
    set_id = require_id(process_set, kind)
    dtypes = [_check(tensor, reduce=False) for tensor in tensors]
    names, prefix = _names(kind, name, set_id, len(tensors), grouped=grouped)
    if result is not None:
        handle = Handle(lambda _: result)
    else:
        handle = Handle(_outputs if grouped else _output_and_received if kind == "alltoall" else _only_output)
    entries = []
    for full_name, tensor, output, dtype in zip(names, tensors, outputs, dtypes, strict=True):
        request = Request(
            name=full_name,
            kind=Kind(kind),
            dtype=dtype,
            shape=tuple(tensor.shape),
            root=root,
            process_set=set_id,
            device=tensor.device.type,
        )
        entries.append(Entry(request, tensor, output, handle, recorder.now_ns(), extra))
    number = _submit(running, entries, waits=waits)
    if name is None:
        _unnamed.accept(prefix, set_id)
    return number


def agree(kind: str, name: str, shape: Sequence[int] = ()) -> Any:
    """Wait until all ranks of the job ask for the same, and return what the coordinator says to it.

    Args:
        kind: `join`, `add_process_set` or `remove_process_set`.
        shape: what it is about (see `Request.shape`).

    Raises:
        HorovodInternalError: the ranks do not ask for the same.
    """
    running = require_running()
    request = Request(name=name, kind=Kind(kind), dtype="uint8", shape=tuple(shape))
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
    entry = Entry(request, nothing, nothing, Handle(_extra), recorder.now_ns())
    return synchronize(_submit(running, [entry], waits=True))


def poll(handle: int) -> bool:
    """Whether the operation has finished.

    Raises:
        ValueError: there is no such operation.
    """
    return _get_handle(handle).done


def synchronize(handle: int) -> Any:
    """Wait for the operation and return its result: a tensor, or a tuple of them for a grouped one.

    Raises:
        ValueError: there is no such operation.
        HorovodInternalError: it failed, on all ranks.
    """
    operation = _get_handle(handle)
    if operation.remaining:
        running = engine.current()
        if running is not None:
            running.wait([operation])
    del _handles[handle]
    entries, operation.entries = operation.entries, ()  # the entries point back: let go of the tensors now
    if operation.error is not None:
        raise HorovodInternalError(operation.error)
    hand_over_here(entries)
    return operation.to_result(entries)


def wait_for_all(handles: Sequence[int]) -> None:
    """Wait for several operations as one; their results and errors come from `synchronize`."""
    running = engine.current()
    if running is not None:
        running.wait([_get_handle(handle) for handle in handles])
