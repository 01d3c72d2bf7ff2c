"""Getting all ranks to the same state: parameters, optimizer state, objects."""

import collections.abc
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...timeline.record import recorder
from ...timeline.vocabulary import OBJECT_CALL, Category
from ..core.calls import calling
from ..core.process_sets import ProcessSet, global_process_set
from . import priming
from .basics import require_engine
from .mpi_ops import allgather_async, broadcast_async_
from .submission import synchronize, wait_for_all

Named = tuple[str | None, torch.Tensor]


def _named_tensors(params: Any) -> list[Named]:
    if isinstance(params, Mapping):
        pairs: list[Any] = sorted(params.items())
    elif isinstance(params, collections.abc.Iterable):
        pairs = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    for name, value in pairs:
        if value is not None and not isinstance(value, torch.Tensor):
            raise ValueError(f"invalid params of type: {type(value)} for {name}: only tensors can be broadcast")
    return [(name, value) for name, value in pairs if value is not None]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor | Named],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite tensors on all ranks with those of `root_rank`.

    Args:
        params: a `state_dict()`, `named_parameters()`, or tensors in the same order on all ranks.

    Raises:
        ValueError: `params` is none of these.
    """
    started: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    with calling("parameters"):
        for name, tensor in _named_tensors(params):
            contiguous = tensor.detach().contiguous()
            started.append((broadcast_async_(contiguous, root_rank, name, process_set), contiguous, tensor))
    wait_for_all([handle for handle, _, _ in started])
    for handle, contiguous, tensor in started:
        synchronize(handle)
        if contiguous.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(contiguous)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`root_rank`'s object, on all ranks.  The ranks of a job trust each other: it travels as a pickle.

    Args:
        obj: what to send; the other ranks may pass anything.
        name: for the timeline, and to have several calls under way at the same time.
    """
    # Not the type's name, as in Horovod: the other ranks may well pass None, and would wait for ever.
    name = name or "object"
    is_root = global_process_set.rank() == root_rank
    payload = torch.empty(0, dtype=torch.uint8, device="cpu")
    with recorder.span(Category.OTHER, OBJECT_CALL), calling("object"):
        if is_root:
            payload = _sealed(obj)
        length = torch.tensor([payload.numel()], dtype=torch.int64, device="cpu")
        synchronize(broadcast_async_(length, root_rank, f"{name}.sz", process_set))
        if not is_root:
            payload = torch.empty(int(length.item()), dtype=torch.uint8, device="cpu")
        synchronize(broadcast_async_(payload, root_rank, f"{name}.t", process_set))
        return obj if is_root else _opened(payload)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in rank order.  The ranks of a job trust each other: they travel as pickles."""
    name = name or "object"
    with recorder.span(Category.OTHER, OBJECT_CALL), calling("object"):
        payload = _sealed(obj)
        length = torch.tensor([payload.numel()], dtype=torch.int64, device="cpu")
        sizes = synchronize(allgather_async(length, f"{name}.sz", process_set)).tolist()
        gathered = synchronize(allgather_async(payload, f"{name}.t", process_set))
        return [_opened(piece) for piece in gathered.split(sizes)]


def _sealed(obj: Any) -> torch.Tensor:
    """An object as a pickle, with the job's seal: what moves the bytes does not ask whose they are."""
    return torch.frombuffer(bytearray(require_engine().seal.close(pickle.dumps(obj))), dtype=torch.uint8)


def _opened(payload: torch.Tensor) -> Any:
    """The object of another rank.

    Raises:
        HorovodInternalError: no rank of this job has sent it.
    """
    return pickle.loads(require_engine().seal.open(payload.numpy().data))  # noqa: S301  a rank of this job made it


class _TensorSlot:
    """Stands for a tensor in a broadcast structure: the structure goes as an object, the tensors as tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device.type


def _map_tensors(value: Any, replace: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return replace(value)
    if isinstance(value, _TensorSlot):
        return replace(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, replace) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(item, replace) for item in value)
    return value


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Overwrite hyper-parameters and state on all ranks with those of `root_rank`.

    The other ranks' state may be empty: what is missing is made from the root's.  If the root has not stepped either, its
    state is made without touching a parameter; and parameters without a gradient get zeros, as Horovod's have them after it.

    Args:
        model: taken for compatibility; not needed.

    Raises:
        ValueError: the optimizer is LBFGS, whose state has no fixed form.
    """
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    with calling("parameters"):
        _broadcast_state(optimizer, root_rank)


def _broadcast_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    is_root = global_process_set.rank() == root_rank
    if not optimizer.state:
        priming.make_gradients(optimizer)
        if is_root:
            priming.make_state(optimizer)
    state = optimizer.state_dict()
    tensors: list[torch.Tensor] = []
    if is_root:
        structure = broadcast_object(_map_tensors(state, _TensorSlot), root_rank, "optimizer_state")
        _map_tensors(state, tensors.append)
        _broadcast_all([tensor.detach() for tensor in tensors], root_rank)
        return
    structure = broadcast_object(None, root_rank, "optimizer_state")
    devices = {parameter.device for group in optimizer.param_groups for parameter in group["params"]}
    accelerator = next((device for device in devices if device.type != "cpu"), None)

    def allocate(slot: _TensorSlot) -> torch.Tensor:
        device = accelerator if slot.device != "cpu" and accelerator is not None else "cpu"
        tensor = torch.empty(slot.shape, dtype=slot.dtype, device=device)
        tensors.append(tensor)
        return tensor

    filled = _map_tensors(structure, allocate)
    _broadcast_all(tensors, root_rank)
    optimizer.load_state_dict(filled)


def _broadcast_all(tensors: list[torch.Tensor], root_rank: int) -> None:
    broadcast_parameters([(f"optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)], root_rank)
