"""A collective of torch.distributed that is under way, and what is recorded of it.

Collectives of a group are numbered in the order of the calls, which is the same on all its ranks.
"""

import logging
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ...timeline import recorder
from ...timeline.vocabulary import Category, LaneKind
from ..dtypes import DTYPE_NAMES

_log = logging.getLogger("tlkit.instrument")


class _Here(threading.local):
    """What this thread is about."""

    inside = False
    """In a collective that is recorded already: some of torch's functions call each other."""


here = _Here()


def name_of(group: Any) -> str:
    """The only name of a group that its ranks agree on."""
    name: str = dist.distributed_c10d._get_process_group_name(group)  # noqa: SLF001  nothing public tells
    return name


class Group:
    """What is the same for all collectives of a process group."""

    def __init__(self, group: Any) -> None:
        name = name_of(group)
        # Another group of all ranks counts for itself.
        is_world = name == name_of(dist.group.WORLD)
        self.number = 0 if is_world else zlib.crc32(name.encode()) & 0x7FFFFFFF | 1
        self.ranks = dist.get_process_group_ranks(group)
        self.backend = str(dist.get_backend(group)).rpartition(":")[2]
        self.seq = 0
        self.last_end_ns = 0
        """Where the last collective ended: a group runs one after the other."""


groups: dict[tuple[str, int], Group] = {}
"""By name and size: after `destroy_process_group` names come back, with other ranks."""
_numbering = threading.Lock()


class Collective:
    """One that is under way."""

    def __init__(
        self, kind: str, tensors: Sequence[torch.Tensor], group: Any, op: str, *, counted: bool = True
    ) -> None:
        self._device = recorder.device() if tensors and not tensors[0].is_cpu else None
        with _numbering:
            group = dist.group.WORLD if group is None else group
            key = (name_of(group), group.size())
            described = groups.get(key)
            if described is None:
                described = groups[key] = Group(group)
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

    @contextmanager
    def calling(self) -> Iterator[None]:
        """While torch's function runs; one that fails is over."""
        here.inside = True
        try:
            yield
        except BaseException:
            self.finished()
            raise
        finally:
            here.inside = False

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


def begin(
    kind: str, tensors: Sequence[torch.Tensor], group: Any, op: str, *, counted: bool = True
) -> Collective | None:
    """A collective that begins; None if it cannot be described, which is no reason not to run it."""
    try:
        return Collective(kind, tensors, group, op, counted=counted)
    except Exception:
        _log.debug("a collective cannot be recorded", exc_info=True)
        return None


def reduction(op: Any) -> str:
    """`sum`, `average` and so on, as a shard has them."""
    name = "sum" if op is None else str(getattr(op, "name", op)).rpartition(".")[2].lower()
    return {"avg": "average", "premul_sum": "sum"}.get(name, name)
