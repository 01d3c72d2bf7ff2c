"""A collective or a message of torch.distributed that is under way, and what is recorded of it.

Collectives of a group are numbered in the order of the calls, which is the same on all its ranks; messages by their group,
sender, receiver and tag, so that the k-th that is sent is the k-th that is received.
"""

import logging
import threading
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch
import torch.distributed as dist

from ...timeline.record import recorder
from ...timeline.record.shard_format import Call, describe_calls
from ...timeline.vocabulary import Category, LaneKind

_log = logging.getLogger("tlkit.instrument")


class _Here(threading.local):
    """What this thread is about."""

    inside = False
    """In a collective that is recorded already: some of torch's functions call each other."""
    under_way: "UnderWay | None" = None
    """The one that the thread is calling, which a wait inside is for."""
    batch: "list[Message] | None" = None
    """Messages of the batch that the thread is calling."""


here = _Here()


def name_of(group: Any) -> str:
    """The only name of a group that its ranks agree on."""
    name: str = dist.distributed_c10d._get_process_group_name(group)  # noqa: SLF001  nothing public tells
    return name


class SpanOrder:
    """What is shown one after the other on the lane of communication."""

    def __init__(self) -> None:
        self.last_end_ns = 0
        """Where the last one ended."""


class ProcessGroupContext(SpanOrder):
    """What is the same for all collectives of a process group, which runs one after the other."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        name = name_of(group)
        # Another group of all ranks counts for itself.
        is_world = name == name_of(dist.group.WORLD)
        self.number = 0 if is_world else zlib.crc32(name.encode()) & 0x7FFFFFFF | 1
        self.ranks = dist.get_process_group_ranks(group)
        self.backend = str(dist.get_backend(group)).rpartition(":")[2]
        self.seq = 0


groups: dict[tuple[str, int], ProcessGroupContext] = {}
"""By name and size: after `destroy_process_group` names come back, with other ranks."""
_messages: dict[tuple[int, str, int, int], int] = {}
"""How many there were, by group, direction, peer and tag."""
_all_messages = SpanOrder()
_numbering = threading.Lock()

#: Args of a collective or message that say of a wait what it is for.
_OF_A_WAIT: Final = frozenset({"seq", "process_set", "caller", "blocking", "where", "peer", "tag"})


def group_of(group: Any) -> ProcessGroupContext:
    """What is known of a process group; None is the group of all ranks.  Called with the lock."""
    group = dist.group.WORLD if group is None else group
    key = (name_of(group), group.size())
    described = groups.get(key)
    if described is None:
        described = groups[key] = ProcessGroupContext(group)
    return described


class UnderWay:
    """What has begun and is not known to be over."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor], group: Any) -> None:
        self._device = recorder.device() if tensors and not tensors[0].is_cpu else None
        self._name = name
        self._group = group
        self.args: dict[str, Any] = {}
        """Of its span."""
        self._token = [None]
        self._nvtx = recorder.nvtx()
        self._range = None if self._nvtx is None else self._nvtx.start(Category.COLLECTIVE, name, _nbytes_of(tensors))
        self._begun = None if self._device is None else self._device.mark()
        self._submitted_ns = recorder.now_ns()

    def calling(self) -> "_Calling":
        """While torch's function runs; one that fails is over."""
        return _Calling(self)

    def wait_args(self) -> dict[str, Any]:
        """Args of the SYNCHRONIZE of a thread that waits for it."""
        kept = {key: value for key, value in self.args.items() if key in _OF_A_WAIT}
        return {"name": self._name, **kept}

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
        self.args["submitted"] = writer.ts(self._submitted_ns)
        if self._device is not None:
            marks = (self._begun, self._device.mark())
            self._device.span(LaneKind.COMMUNICATION, Category.COLLECTIVE, self._name, marks, self.args)
            return
        with _numbering:
            order = self._order()
            start_ns = min(max(self._submitted_ns, order.last_end_ns), end_ns)
            order.last_end_ns = end_ns
        recorder.complete(LaneKind.COMMUNICATION, Category.COLLECTIVE, self._name, start_ns, end_ns, self.args)

    def _order(self) -> SpanOrder:
        """What runs one after the other with it."""
        raise NotImplementedError


class _Calling:
    """A block in which torch's function runs; no generator, for what one costs in the middle of a step."""

    __slots__ = ("_under_way",)

    def __init__(self, under_way: UnderWay) -> None:
        self._under_way = under_way

    def __enter__(self) -> None:
        here.inside, here.under_way = True, self._under_way

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self._under_way.finished()
        here.inside, here.under_way = False, None


class Collective(UnderWay):
    """A collective that is under way."""

    def __init__(
        self,
        kind: str,
        tensors: Sequence[torch.Tensor],
        group: Any,
        op: str,
        call: Call,
        *,
        counted: bool = True,
    ) -> None:
        with _numbering:
            described = group_of(group)
            seq, described.seq = described.seq, described.seq + 1
        super().__init__(kind.upper(), tensors, described)
        self._of_a_wait: dict[str, Any] = {"seq": seq, "process_set": described.number, **describe_calls((call,))}
        self.args = {
            **self._of_a_wait,
            "dtype": _dtype_name(tensors[0].dtype) if tensors else "",
            "bytes": _nbytes_of(tensors),
            "algorithm": described.backend,
        }
        if counted:
            self.args["tensors"] = len(tensors)
        if described.number:
            self.args["ranks"] = described.ranks
        if op:
            self.args["op"] = op

    def wait_args(self) -> dict[str, Any]:
        """See `UnderWay`; all of it is known from the beginning."""
        return {"name": self._name, **self._of_a_wait}

    def _order(self) -> SpanOrder:
        group: ProcessGroupContext = self._group
        return group


class Message(UnderWay):
    """A message between this rank and another that is under way."""

    def __init__(self, name: str, tensor: torch.Tensor, group: Any, peer: int, tag: int) -> None:
        """Begin it.

        Args:
            name: SEND or RECV.
            peer: the other rank, of all; -1 for a receipt from whoever sends first.
        """
        with _numbering:
            described = group_of(group)
        super().__init__(name, (tensor,), described)
        self._tag = tag
        self.args = {
            "tag": tag,
            "bytes": tensor.nbytes,
            "process_set": described.number,
            "algorithm": described.backend,
        }
        if peer >= 0:
            self.of(peer)

    @property
    def knows_peer(self) -> bool:
        """Whether it is known which rank is at the other end."""
        return "peer" in self.args

    def rank_of(self, place: int) -> int:
        """The rank at a place in the group."""
        ranks: list[int] = self._group.ranks
        return ranks[place]

    def of(self, peer: int) -> None:
        """Say which rank is at the other end."""
        if self.knows_peer:
            return
        key = (self.args["process_set"], self._name, peer, self._tag)
        with _numbering:
            seq = _messages.get(key, 0)
            _messages[key] = seq + 1
        self.args |= {"peer": peer, "seq": seq}

    def _order(self) -> SpanOrder:
        return _all_messages


def begin(
    kind: str, tensors: Sequence[torch.Tensor], group: Any, op: str, call: Call, *, counted: bool = True
) -> Collective | None:
    """A collective that begins; None if it cannot be described, which is no reason not to run it."""
    try:
        return Collective(kind, tensors, group, op, call, counted=counted)
    except Exception:
        _log.debug("a collective cannot be recorded", exc_info=True)
        return None


def forget() -> None:
    """Forget groups and counts: another recording begins with the first."""
    groups.clear()
    _messages.clear()
    _all_messages.last_end_ns = 0


def reduction(op: Any) -> str:
    """`sum`, `average` and so on, as a shard has them."""
    op = getattr(op, "op", op)  # options of a process group hold it inside an object of C++
    return "sum" if op is None else _reduction_name(op)


@cache
def _reduction_name(op: Any) -> str:
    """Of a member of an enum of C++, which looks its own name up in Python, one member after the other."""
    name = str(getattr(op, "name", op)).rpartition(".")[2].lower()
    return {"avg": "average", "premul_sum": "sum"}.get(name, name)


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _nbytes_of(tensors: Sequence[torch.Tensor]) -> int:
    return sum([tensor.nbytes for tensor in tensors])
