"""Collectives that a training calls of torch.distributed: by its functions, as FSDP does, or by DistributedDataParallel.

The functions are wrapped where torch.distributed offers them.  DDP reduces its buckets out of sight, in C++; there a process
group of ours stands in front of its own (a communication hook would cost a pass over all gradients).  A hook of the user's own
is left to do its work, and what it calls is recorded.  When the training thread blocks (`Work.wait`, the end of DDP's backward
pass) it is in SYNCHRONIZE.

Collectives of a group are numbered in the order of the calls, which is the same on all its ranks.
"""

import gc
import inspect
import logging
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, cast

import torch
import torch.distributed as dist

# torch.distributed hands it on without exporting it, which type checkers refuse.
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ...timeline import recorder
from ...timeline.vocabulary import MEMCPY_OUT, SYNCHRONIZE, Category, LaneKind
from ..dtypes import DTYPE_NAMES
from .model import at_backward_end
from .patching import Patches

_log = logging.getLogger("tlkit.instrument")
_patches = Patches()

#: Functions of torch.distributed: the kind of the collective, and the argument that holds what this rank brings.
_FUNCTIONS: Final = {
    "all_reduce": ("allreduce", "tensor"),
    "all_gather": ("allgather", "tensor"),
    "all_gather_into_tensor": ("allgather", "input_tensor"),
    "all_gather_single": ("allgather", "input_tensor"),
    "reduce_scatter": ("reducescatter", "input_list"),
    "reduce_scatter_tensor": ("reducescatter", "input"),
    "reduce_scatter_single": ("reducescatter", "input"),
    "broadcast": ("broadcast", "tensor"),
    "all_to_all": ("alltoall", "input_tensor_list"),
    "all_to_all_single": ("alltoall", "input"),
    "barrier": ("barrier", None),
    # Buffers that DDP sends from rank 0 before a forward pass.
    "_broadcast_coalesced": ("broadcast", 1),
}
#: These wait for their work in C++.
_WAIT_INSIDE: Final = frozenset({"_broadcast_coalesced"})


class _Here(threading.local):
    """What this thread is about."""

    inside = False
    """In a collective that is recorded already: some of torch's functions call each other."""


_here = _Here()


class _Group:
    """What is the same for all collectives of a process group."""

    def __init__(self, group: Any) -> None:
        ranks = dist.get_process_group_ranks(group)
        name = dist.distributed_c10d._get_process_group_name(group)  # noqa: SLF001  the only name that ranks agree on
        is_world = len(ranks) == dist.get_world_size()
        self.number = 0 if is_world else zlib.crc32(name.encode()) & 0x7FFFFFFF | 1
        self.ranks = ranks
        self.backend = str(dist.get_backend(group)).rpartition(":")[2]
        self.seq = 0
        self.last_end_ns = 0
        """Where the last collective ended: a group runs one after the other."""


_groups: dict[tuple[str, int], _Group] = {}
"""By name and size: after `destroy_process_group` names come back, with other ranks."""
_numbering = threading.Lock()


class _Collective:
    """One that is under way."""

    def __init__(
        self, kind: str, tensors: Sequence[torch.Tensor], group: Any, op: str, *, counted: bool = True
    ) -> None:
        self._device = recorder.device() if tensors and not tensors[0].is_cpu else None
        with _numbering:
            group = dist.group.WORLD if group is None else group
            name = dist.distributed_c10d._get_process_group_name(group)  # noqa: SLF001  see _Group
            described = _groups.get((name, group.size()))
            if described is None:
                described = _groups[name, group.size()] = _Group(group)
            self._group = described
            seq, described.seq = described.seq, described.seq + 1
        self._kind = kind
        self._args: dict[str, Any] = {
            "seq": seq,
            "process_set": described.number,
            "dtype": DTYPE_NAMES.get(tensors[0].dtype, str(tensors[0].dtype).removeprefix("torch.")) if tensors else "",
            "bytes": sum(tensor.nbytes for tensor in tensors),
            "algorithm": described.backend,
        }
        if counted:
            self._args["tensors"] = len(tensors)
        if described.number:
            self._args["ranks"] = described.ranks
        if op:
            self._args["op"] = op
        self._token = [None]
        self._nvtx = recorder.nvtx()
        self._range = (
            None if self._nvtx is None else self._nvtx.start(Category.COLLECTIVE, kind.upper(), self._args["bytes"])
        )
        self._begun = None if self._device is None else self._device.mark()
        self._submitted_ns = recorder.now_ns()

    def finished(self, *_: object) -> None:
        """Record it.  Called from whatever thread learns it first; later calls do nothing."""
        end_ns = recorder.now_ns()
        try:
            self._token.pop()
        except IndexError:
            return
        if self._nvtx is not None:
            self._nvtx.stop(self._range)
        writer = recorder.timeline()
        if writer is None:
            return
        self._args["submitted"] = writer.ts(self._submitted_ns)
        name = self._kind.upper()
        if self._device is not None:
            marks = (self._begun, self._device.mark())
            self._device.span(LaneKind.COMMUNICATION, Category.COLLECTIVE, name, marks, self._args)
            return
        with _numbering:
            start_ns = min(max(self._submitted_ns, self._group.last_end_ns), end_ns)
            self._group.last_end_ns = end_ns
        recorder.complete(LaneKind.COMMUNICATION, Category.COLLECTIVE, name, start_ns, end_ns, self._args)


def _begin(
    kind: str, tensors: Sequence[torch.Tensor], group: Any, op: str, *, counted: bool = True
) -> _Collective | None:
    """A collective that begins; None if it cannot be described, which is no reason not to run it."""
    try:
        return _Collective(kind, tensors, group, op, counted=counted)
    except Exception:
        _log.debug("a collective cannot be recorded", exc_info=True)
        return None


def install() -> None:
    """Record the collectives of torch.distributed."""
    if not dist.is_available():
        return
    for name, (kind, payload) in _FUNCTIONS.items():
        if hasattr(dist, name):
            _patches.replace(dist, name, _recorded(getattr(dist, name), kind, payload, waits=name in _WAIT_INSIDE))
    _patches.replace(dist.Work, "wait", _recorded_wait(dist.Work.wait))
    _patches.replace(
        DistributedDataParallel, "register_comm_hook", _with_end(DistributedDataParallel.register_comm_hook)
    )
    _patches.replace(dist, "Reducer", _recorded_reducer(vars(dist)["Reducer"]))
    if any(
        issubclass(type(found), DistributedDataParallel) and found.reducer not in _reducers
        for found in gc.get_objects()
    ):
        _log.warning(
            "a DistributedDataParallel model was made before tlkit.instrument(): what it reduces is not recorded; call "
            "tlkit.instrument() right after init_process_group()"
        )


def uninstall() -> None:
    """Put back what was there; DDP models keep their groups, which record nothing then."""
    _patches.restore()
    _groups.clear()


def _recorded(original: Any, kind: str, payload: str | int | None, *, waits: bool) -> Any:
    parameters = list(inspect.signature(original).parameters) if not isinstance(payload, int) else []
    payload_at = parameters.index(payload) if isinstance(payload, str) and payload in parameters else payload
    group_at = parameters.index("group") if "group" in parameters else 0

    def argument(at: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[at] if isinstance(at, int) and at < len(args) else kwargs.get(name)

    @wraps(original)
    def recorded_collective(*args: Any, **kwargs: Any) -> Any:
        if _here.inside or not recorder.is_on() or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        group = argument(group_at, "group", args, kwargs)
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return original(*args, **kwargs)
        brought = argument(payload_at, str(payload), args, kwargs) if payload is not None else ()
        tensors = [brought] if isinstance(brought, torch.Tensor) else [t for t in brought or () if torch.is_tensor(t)]
        op = kwargs.get("op", args[1] if kind == "allreduce" and len(args) > 1 else None) if "reduce" in kind else None
        under_way = _begin(kind, tensors, group, _name_of(op) if "reduce" in kind else "")
        if under_way is None:
            return original(*args, **kwargs)
        _here.inside = True
        opened = recorder.begin(Category.OTHER, SYNCHRONIZE) if waits else None
        try:
            work = original(*args, **kwargs)
        except BaseException:
            under_way.finished()
            raise
        finally:
            _here.inside = False
            recorder.end(opened)
        if work is None or not hasattr(work, "get_future"):
            under_way.finished()
        else:
            _finish_with(work, under_way)
        return work

    return recorded_collective


def _name_of(op: Any) -> str:
    """`sum`, `average` and so on, as a shard has them."""
    name = "sum" if op is None else str(getattr(op, "name", op)).rpartition(".")[2].lower()
    return {"avg": "average", "premul_sum": "sum"}.get(name, name)


def _finish_with(work: Any, under_way: _Collective) -> None:
    """Have a collective recorded when its work is done."""
    try:
        work.get_future().add_done_callback(under_way.finished)
    except Exception:
        # A backend whose work has no future: it is done, at the latest, when somebody has waited for it.
        _waited_for[work] = under_way


_waited_for: weakref.WeakKeyDictionary[Any, _Collective] = weakref.WeakKeyDictionary()


def _recorded_wait(original: Any) -> Any:
    def recorded_wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_on() or not recorder.is_training_thread():
            return original(self, *args, **kwargs)
        opened = recorder.begin(Category.OTHER, SYNCHRONIZE)
        try:
            return original(self, *args, **kwargs)
        finally:
            recorder.end(opened)
            under_way = _waited_for.pop(self, None)
            if under_way is not None:
                under_way.finished()

    recorded_wait.__wrapped__ = original  # type: ignore[attr-defined]
    return recorded_wait


# DistributedDataParallel.


#: C++ keeps a group alive, but not the Python half of it, which records.
_kept: list[dist.ProcessGroup] = []
#: Of models that are recorded, for as long as they live.
_reducers: weakref.WeakSet[Any] = weakref.WeakSet()


class _RecordedGroup(dist.ProcessGroup):
    """A process group as DDP's reducer sees it: the group behind it does everything, and allreduces are recorded."""

    def __init__(self, behind: dist.ProcessGroup) -> None:
        super().__init__(behind.rank(), behind.size())  # type: ignore[call-arg]  # the stub knows one of two
        # How torch itself puts groups together; none of it is in its stubs.
        mine, inside = cast("Any", self), cast("Any", behind)
        for device in inside._device_types:  # noqa: SLF001
            backend = inside._get_backend(device)  # noqa: SLF001
            kind = getattr(dist.ProcessGroup.BackendType, backend.name().upper(), dist.ProcessGroup.BackendType.CUSTOM)
            mine._register_backend(device, kind, backend)  # noqa: SLF001
        mine._set_group_name(inside.group_name)  # noqa: SLF001
        self._behind = behind

    def allreduce(self, tensors: Any, options: Any) -> Any:  # type: ignore[override]  # C++ calls this one of three
        """A bucket is full, or DDP asks which parameters were used."""
        if not recorder.is_on():
            return self._behind.allreduce(tensors, options)
        if recorder.is_training_thread():
            _wait_at_the_end()
        under_way = _begin("allreduce", tensors, self._behind, _name_of(options.reduceOp), counted=False)
        work = self._behind.allreduce(tensors, options)
        if under_way is not None:
            _finish_with(work, under_way)
        return work

    def broadcast(self, tensors: Any, options: Any) -> Any:  # type: ignore[override]  # C++ calls this one of two
        """What DDP's ranks agree on.  Left to C++ it holds the interpreter's lock, and may wait for a thread that wants it."""
        return self._behind.broadcast(tensors, options)


def _recorded_reducer(original: Any) -> Any:
    """What makes DDP's reducer, on a group that is recorded."""

    @wraps(original)
    def make(parameters: Any, bucket_indices: Any, first: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        names = next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, dict)), {})
        _note_largest(parameters, names)
        try:
            group = _RecordedGroup(group)
            _kept.append(group)
        except Exception as error:  # a torch or a backend that puts groups together otherwise
            _log.warning("what DistributedDataParallel reduces cannot be recorded: %s", str(error)[:200])
        reducer = original(parameters, bucket_indices, first, group, *args, **kwargs)
        _reducers.add(reducer)
        return reducer

    return make


def _note_largest(parameters: Sequence[torch.Tensor], names: dict[int, str]) -> None:
    """Buckets do not tell what they carry, and one huge gradient may be most of it."""
    writer = recorder.timeline()
    if writer is not None and parameters:
        nbytes = [parameter.nbytes for parameter in parameters]
        largest = max(range(len(nbytes)), key=nbytes.__getitem__)
        writer.largest_gradient(names.get(largest, f"parameter {largest}"), nbytes[largest], sum(nbytes))


def _with_end(original: Any) -> Any:
    """`register_comm_hook`, whose hook also says from when on backward only waits."""

    @wraps(original)
    def register_comm_hook(self: Any, state: object, hook: Callable[..., Any]) -> Any:
        @wraps(hook)
        def hook_with_end(state: object, bucket: GradBucket) -> Any:
            future = hook(state, bucket)
            if bucket.is_last() and recorder.is_training_thread():
                _wait_at_the_end()
            return future

        return original(self, state, hook_with_end)

    return register_comm_hook


def _wait_at_the_end() -> None:
    """From when backward has nothing left to compute it waits: called before DDP asks to be called then, too."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(_wait_from_here)  # noqa: SLF001  DDP's own way
    except RuntimeError as error:  # not in a backward pass
        _log.debug("%s", error)


def _wait_from_here() -> None:
    if at_backward_end:  # another bucket has asked for it
        return
    opened = recorder.begin(Category.OTHER, SYNCHRONIZE)
    if opened is not None:
        at_backward_end.append(lambda: _waited(opened))


def _waited(opened: recorder.OpenSpan) -> None:
    """The end of DDP's backward pass.  After the last bucket has arrived, gradients were copied out of the buckets."""
    recorder.end(opened)
    last_end_ns = max((group.last_end_ns for group in _groups.values()), default=0)
    if last_end_ns > opened.start_ns and recorder.device() is None:
        end_ns = recorder.now_ns()
        recorder.complete(LaneKind.COMMUNICATION, Category.FUSION, MEMCPY_OUT, last_end_ns, end_ns)
