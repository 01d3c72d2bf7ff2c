"""Collectives that a training calls of torch.distributed: by its functions, as FSDP does, or by DistributedDataParallel.

The functions are wrapped where torch.distributed offers them.  DDP reduces its buckets out of sight, in C++; there a process
group of ours stands in front of its own (a communication hook would cost a pass over all gradients).  A hook of the user's own
is left to do its work, and what it calls is recorded.  When the training thread blocks (`Work.wait`, the end of DDP's backward
pass) it is in SYNCHRONIZE.
"""

import atexit
import gc
import inspect
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, Final, cast

import torch
import torch.distributed as dist

# torch.distributed hands it on without exporting it, which type checkers refuse.
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ...timeline.record import recorder
from ...timeline.vocabulary import MEMCPY_OUT, OBJECT_CALL, Category, LaneKind
from ..core.calls import GRADIENT, current_of_torch, handing_on
from .collective_spans import Message, UnderWay, begin, forget, groups, here, reduction
from .model import at_backward_end
from .patching import Patches
from .torch_groups import GROUP_FUNCTIONS, recorded_making

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
    "reduce": ("reduce", "tensor"),
    "gather": ("gather", "tensor"),
    "scatter": ("scatter", "tensor"),
    "barrier": ("barrier", None),
    # Buffers that DDP sends from rank 0 before a forward pass.
    "_broadcast_coalesced": ("broadcast", 1),
}
#: Functions by which torch.distributed sends objects around; it calls them without looking them up in its package.
_OF_OBJECTS: Final = ("all_gather", "broadcast", "gather", "scatter")
#: And those functions.
_OBJECT_FUNCTIONS: Final = (
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
)
#: These wait for their work in C++.
_WAIT_INSIDE: Final = frozenset({"_broadcast_coalesced"})


def install() -> None:
    """Record the collectives of torch.distributed."""
    if not dist.is_available():
        return
    inside = dist.distributed_c10d
    for name, (kind, payload) in _FUNCTIONS.items():
        if hasattr(dist, name):
            original = getattr(dist, name)
            recorded = _recorded(original, kind, payload, waits=name in _WAIT_INSIDE)
            _patches.replace(dist, name, recorded)
            if name in _OF_OBJECTS and getattr(inside, name, None) is original:
                _patches.replace(inside, name, recorded)
    for name in _OBJECT_FUNCTIONS:
        if hasattr(dist, name):
            _patches.replace(dist, name, _recorded_objects(getattr(dist, name)))
    for name in GROUP_FUNCTIONS:
        _patches.replace(dist, name, recorded_making(getattr(dist, name)))
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
            "a DistributedDataParallel model was created before tlkit.instrument(): its reductions are not recorded; call "
            "tlkit.instrument() right after init_process_group()"
        )


def uninstall() -> None:
    """Put back what was there; DDP models keep their groups, which record nothing then."""
    _patches.restore()
    _Bucket.last = None
    forget()


def _recorded(original: Any, kind: str, payload: str | int | None, *, waits: bool) -> Any:
    parameters = list(inspect.signature(original).parameters) if not isinstance(payload, int) else []
    at: dict[str, int] = {name: parameters.index(name) for name in ("group", "op", "async_op") if name in parameters}
    at.setdefault("group", 0)
    if isinstance(payload, int):
        at["payload"] = payload
    elif payload in parameters:
        at["payload"] = parameters.index(payload)

    def argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], keyword: str | None = None) -> Any:
        place = at.get(name)
        return args[place] if place is not None and place < len(args) else kwargs.get(keyword or name)

    @wraps(original)
    def recorded_collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or here.inside or not recorder.is_on():
            return original(*args, **kwargs)
        group = argument("group", args, kwargs)
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return original(*args, **kwargs)
        brought = argument("payload", args, kwargs, str(payload)) if payload is not None else ()
        tensors = [brought] if isinstance(brought, torch.Tensor) else [t for t in brought or () if torch.is_tensor(t)]
        op = reduction(argument("op", args, kwargs)) if "reduce" in kind else ""
        call = current_of_torch(kind, blocking=not argument("async_op", args, kwargs))
        under_way = begin(kind, tensors, group, op, call)
        if under_way is None:
            return original(*args, **kwargs)
        with under_way.calling():
            wait = recorder.begin_wait(under_way.wait_args()) if waits else None
            try:
                work = original(*args, **kwargs)
            finally:
                recorder.end_wait(wait)
        if work is None or not hasattr(work, "get_future"):
            under_way.finished()
        else:
            remember(work, (under_way,))
        return work

    return recorded_collective


def _recorded_objects(original: Any) -> Any:
    """With a span around all of it: what is not spent in its collectives goes to pickling."""

    @wraps(original)
    def recorded_object_call(*args: Any, **kwargs: Any) -> Any:
        with recorder.span(Category.OTHER, OBJECT_CALL):
            return original(*args, **kwargs)

    return recorded_object_call


def remember(work: Any, under_way: Sequence[UnderWay]) -> None:
    """Have what a work does recorded when it is done, and told of a wait for it."""
    ends_with_wait = True
    if all(not isinstance(each, Message) or each.knows_peer for each in under_way):
        ends_with_wait = not _finish_with(work, under_way)
    _works[work] = (under_way, ends_with_wait)


def _finish_with(work: Any, under_way: Sequence[UnderWay]) -> bool:
    """Have it recorded when its work is done; whether the work tells that."""
    try:
        future = work.get_future()
        for each in under_way:
            future.add_done_callback(_calls_back(each))
    except Exception:
        # A backend whose work has no future: it is done, at the latest, when somebody has waited for it.
        return False
    return True


def _calls_back(under_way: UnderWay) -> Callable[..., None]:
    """What the work calls when it is done, on a thread of the backend's."""
    _awaited.add(id(under_way))

    def done(future: object) -> None:
        try:
            under_way.finished(future)
        finally:
            _awaited.discard(id(under_way))

    return done


#: By identity those of which no work has said yet that it is done.
_awaited: set[int] = set()
#: So long the end of the process waits for them, and for the threads that have called to let go of what they called.
_LAST_CALLS_S: Final = 0.5
_LET_GO_S: Final = 0.005


@atexit.register
def let_calls_end() -> None:
    """Wait for the last works: DDP does not wait until they have called back.

    A recording that ends has what they tell; and a thread of C++ that wants the interpreter's lock when the interpreter has
    ended takes the process with it (SIGABRT: "terminate called without an active exception").
    """
    deadline_s = time.monotonic() + _LAST_CALLS_S
    while _awaited and time.monotonic() < deadline_s:
        time.sleep(_LET_GO_S)
    time.sleep(_LET_GO_S)


_works: weakref.WeakKeyDictionary[Any, tuple[Sequence[UnderWay], bool]] = weakref.WeakKeyDictionary()
"""What is under way, and whether only a wait tells that it is over."""


def _recorded_wait(original: Any) -> Any:
    def recorded_wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_on():
            return original(self, *args, **kwargs)
        under_way, ends_with_wait = _works.pop(self, _NOTHING)
        wait = None
        if recorder.is_training_thread():
            waited_for = under_way[0] if under_way else here.under_way
            wait = recorder.begin_wait(None if waited_for is None else waited_for.wait_args())
        try:
            return original(self, *args, **kwargs)
        finally:
            recorder.end_wait(wait)
            if ends_with_wait:
                for each in under_way:
                    _say_sender(each, self)
                    each.finished()

    recorded_wait.__wrapped__ = original  # type: ignore[attr-defined]
    return recorded_wait


_NOTHING: Final[tuple[Sequence[UnderWay], bool]] = ((), False)


def _say_sender(under_way: UnderWay, work: Any) -> None:
    """A receipt from whoever sends first: its work knows."""
    if not isinstance(under_way, Message) or under_way.knows_peer:
        return
    try:
        under_way.of(under_way.rank_of(work._source_rank()))  # noqa: SLF001  torch's own `recv` asks it, too
    except Exception:  # it has not arrived
        _log.debug("the sender of a message is unknown", exc_info=True)


# DistributedDataParallel.


class _Bucket:
    """The last bucket that DDP has begun to reduce."""

    last: UnderWay | None = None


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
        under_way = begin("allreduce", tensors, self._behind, reduction(options.reduceOp), GRADIENT, counted=False)
        work = self._behind.allreduce(tensors, options)
        if under_way is not None:
            _Bucket.last = under_way
            _finish_with(work, (under_way,))
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
        _keep_from_the_compiler()
        try:
            group = _RecordedGroup(group)
            _kept.append(group)
        except Exception as error:  # a torch or a backend that puts groups together otherwise
            _log.warning("reductions of DistributedDataParallel cannot be recorded: %s", str(error)[:200])
        reducer = original(parameters, bucket_indices, first, group, *args, **kwargs)
        _reducers.add(reducer)
        return reducer

    return make


@cache
def _keep_from_the_compiler() -> None:
    """DDP under torch.compile calls these from C++, with a group that the compiler refuses to look into.

    Not where they are written, since this imports the compiler; DDP has imported it by now.
    """
    for name in ("allreduce", "broadcast"):
        setattr(_RecordedGroup, name, torch.compiler.disable(getattr(_RecordedGroup, name)))


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
            with handing_on(GRADIENT):
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
    wait = recorder.begin_wait()
    if wait is not None:
        at_backward_end.append(lambda: _waited(wait))


def _waited(wait: recorder.Wait) -> None:
    """The end of DDP's backward pass.  After the last bucket has arrived, gradients were copied out of the buckets."""
    last, _Bucket.last = _Bucket.last, None
    start_ns = wait[0].start_ns
    recorder.end_wait(wait, None if last is None else last.wait_args())
    last_end_ns = max((group.last_end_ns for group in groups.values()), default=0)
    if last_end_ns > start_ns and recorder.device() is None:
        end_ns = recorder.now_ns()
        recorder.complete(LaneKind.COMMUNICATION, Category.FUSION, MEMCPY_OUT, last_end_ns, end_ns)
