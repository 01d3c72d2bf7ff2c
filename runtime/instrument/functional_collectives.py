"""Functional collectives of PyTorch: what DTensor, and with it tensor parallelism, calls.

They return a tensor at once, and whoever needs its values waits for them.  Nothing tells when one was done that nobody waits
for yet: it is recorded up to the end of the wait, which is never too short.  One that nobody ever waits for, which torch
complains of at the end, is not recorded.
"""

import inspect
from collections.abc import Sequence
from functools import wraps
from typing import Any, Final

import torch
import torch.distributed as dist

from ...timeline.record import recorder
from ..core.calls import current_of_torch
from .collective_spans import Collective, begin, here, reduction
from .patching import Patches

_patches = Patches()

#: Functions of torch.distributed._functional_collectives, in the words of all versions, with the kind of the collective.
_FUNCTIONS: Final = {
    "all_reduce": "allreduce",
    "all_reduce_coalesced": "allreduce",
    "all_gather_single": "allgather",
    "all_gather_single_autograd": "allgather",
    "all_gather_single_coalesced": "allgather",
    "all_gather_tensor": "allgather",
    "all_gather_tensor_autograd": "allgather",
    "all_gather_into_tensor_coalesced": "allgather",
    "reduce_scatter_single": "reducescatter",
    "reduce_scatter_single_autograd": "reducescatter",
    "reduce_scatter_single_coalesced": "reducescatter",
    "reduce_scatter_tensor": "reducescatter",
    "reduce_scatter_tensor_autograd": "reducescatter",
    "reduce_scatter_tensor_coalesced": "reducescatter",
    "all_to_all_single": "alltoall",
    "all_to_all_single_autograd": "alltoall",
    "broadcast": "broadcast",
}

_waited_for: dict[int, Collective] = {}
"""By the address of the result, which is what a wait names."""


def install() -> None:
    """Record functional collectives."""
    if not dist.is_available():
        return
    import torch.distributed._functional_collectives as functional  # noqa: PLC0415  not without torch.distributed

    for name, kind in _FUNCTIONS.items():
        if hasattr(functional, name):
            _patches.replace(functional, name, _recorded(getattr(functional, name), kind, functional))
    _patches.replace(functional, "wait_tensor", _recorded_wait(functional.wait_tensor))


def uninstall() -> None:
    """Put back what was there."""
    _patches.restore()
    _waited_for.clear()


def _recorded(original: Any, kind: str, functional: Any) -> Any:
    names = list(inspect.signature(original).parameters)

    @wraps(original)
    def recorded_collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or here.inside or not recorder.is_on():
            return original(*args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        tensors = _tensors(given.get("self", given.get("inputs")))
        group = _group_of(functional, given)
        under_way = None
        if group is not None and tensors:
            op = reduction(given.get("reduceOp")) if "reduce" in kind else ""
            under_way = begin(kind, tensors, group, op, current_of_torch(kind, blocking=False))
        if under_way is None:
            return original(*args, **kwargs)
        with under_way.calling():
            result = original(*args, **kwargs)
        address = _address(result)
        if address is None:
            under_way.finished()
        else:
            _waited_for[address] = under_way
        return result

    return recorded_collective


def _tensors(brought: Any) -> Sequence[torch.Tensor]:
    return [brought] if isinstance(brought, torch.Tensor) else [t for t in brought or () if torch.is_tensor(t)]


def _group_of(functional: Any, given: dict[str, Any]) -> Any:
    """The process group behind a group, a mesh, a mesh and its dimension, or a name; None if it cannot be told."""
    try:
        group = given["group"]
        if isinstance(group, dist.ProcessGroup):
            return group
        name = functional._resolve_group_name(group, given.get("tag", ""))  # noqa: SLF001  as the functions do
        return vars(dist.distributed_c10d)["_resolve_process_group"](name)
    except Exception:  # no reason not to run it
        return None


def _address(result: Any) -> int | None:
    """The pending operation of a tensor that was not awaited yet; None if there is none."""
    first = result[0] if isinstance(result, list | tuple) and result else result
    pending = getattr(first, "elem", None)
    if pending is None or getattr(first, "completed", False):
        return None
    return _address_of(pending)


def _address_of(tensor: Any) -> int | None:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (AttributeError, RuntimeError):  # made up, as in tracing
        return None


def _recorded_wait(original: Any) -> Any:
    @wraps(original)
    def wait_tensor(tensor: Any) -> Any:
        if torch.compiler.is_compiling() or not recorder.is_on():
            return original(tensor)
        address = _address_of(tensor)
        under_way = None if address is None else _waited_for.pop(address, None)
        if under_way is None and not here.inside:  # waited for before
            return original(tensor)
        wait = None
        if recorder.is_training_thread():
            wait = recorder.begin_wait(None if under_way is None else under_way.wait_args())
        try:
            return original(tensor)
        finally:
            recorder.end_wait(wait)
            if under_way is not None:
                under_way.finished()

    return wait_tensor
