"""Gradients laid out one behind the other, so that they are reduced where they lie.

A bucket is some parameters of one dtype and device.  When backward has produced the last of its gradients, all of them are
copied into the bucket's memory and submitted together, each under its own name; the runtime then reduces the memory as it is.
Afterwards `.grad` is that memory, so nothing is copied back (`gradient_memory.py` sees to it that it belongs to nobody else);
on a device it is from the copying on, as with DDP's `gradient_as_bucket_view`, and what was copied is free again.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch

from ..core.control.messages import Request
from ..core.kinds import Kind
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, require_id
from ..core.work import Handle, Together
from .data_plane.dtypes import DTYPE_NAMES
from .gradient_memory import GradientMemory, Layout
from .prepared import check_outcome, join, submit_prepared, submit_together

#: Bytes of a bucket.  Smaller ones start earlier, larger ones need fewer collectives.
BUCKET_NBYTES: Final = 8 * 1024 * 1024

#: Bytes of the bucket that is ready last: nothing is left to hide it behind.
LAST_BUCKET_NBYTES: Final = 1024 * 1024

#: Whether gradients in host memory become pieces of the bucket when they are copied in, as those on a device do, rather than when
#: they are reduced.  There is more of that memory, and until it is reduced the program sees its own gradient.
ADOPTS_ON_CPU: Final = False

#: Elements above which a gradient is scaled while it is copied; smaller ones are cheaper to scale all at once.
_LARGE_NUMEL: Final = 16 * 1024


class Bucket:
    """Some parameters whose gradients are reduced together."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        memory: GradientMemory,
        first: int,
        first_element: int,
        *,
        op: ReduceOp,
        predivide_factor: float,
        priority: int,
        process_set: ProcessSet,
    ) -> None:
        """Lay out the gradients.

        Args:
            names: of the parameters.
            memory: where the gradients lie.
            first: place of the first parameter in `memory`.
            first_element: where its gradient begins there.
            predivide_factor: what an average is divided by before the sum, and multiplied by after.
            priority: of the reduction; higher goes first.
        """
        self.parameters = list(parameters)
        self._process_set = process_set
        self.launched: Handle | None = None
        self.remaining = len(self.parameters)
        size = process_set.size() or 1
        self._factor, postscale = 1.0, 1.0
        if op is ReduceOp.AVERAGE:
            # What can be multiplied while a gradient is copied costs nothing.
            op = ReduceOp.SUM
            plain = predivide_factor == 1.0
            self._factor, postscale = (1.0 / size, 1.0) if plain else (1.0 / predivide_factor, predivide_factor / size)
        self._gradients = memory
        self._places = slice(first, first + len(self.parameters))
        numel = sum(parameter.numel() for parameter in self.parameters)
        self._elements = (first_element, first_element + numel)
        self._together: tuple[Layout, Together] | None = None
        """All of its gradients, in the layout that was used last."""
        self._layout = memory.layout
        self._adopts = ADOPTS_ON_CPU or not self.parameters[0].is_cpu
        self._large = [parameter.numel() >= _LARGE_NUMEL for parameter in self.parameters]
        self._requests = [
            Request(
                name=f"allreduce.{name}",
                kind=Kind.ALLREDUCE,
                dtype=DTYPE_NAMES[parameter.dtype],
                shape=tuple(parameter.shape),
                op=int(op),
                postscale=postscale,
                process_set=require_id(process_set, "allreduce"),
                device=parameter.device.type,
                priority=priority,
            )
            for name, parameter in zip(names, self.parameters, strict=True)
        ]
        self._kept: list[int] = []
        self._versions: list[int] = []
        self._before: list[tuple[int, int] | None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether some of its gradients are there, or under way."""
        return self.launched is not None or self.remaining != len(self.parameters)

    def look(self, arrived: torch.Tensor) -> None:
        """Note what the gradients are before backward has made them, so that `is_fresh` can tell which it has made since.

        Args:
            arrived: the parameter whose gradient is there already.
        """
        self._before = [None if parameter is arrived else _mark(parameter.grad) for parameter in self.parameters]

    def is_fresh(self) -> bool:
        """Whether backward has made new gradients for all parameters since `look`."""
        before, self._before = self._before, None
        if before is None:
            return False
        for parameter, mark in zip(self.parameters, before, strict=True):
            gradient = parameter.grad
            if gradient is None or (mark is not None and mark == _mark(gradient)):
                return False
        return True

    def launch(self, start_sparse: Callable[[int], bool]) -> None:
        """Copy the gradients in and start to reduce them.  A parameter without a gradient counts as zeros.

        Args:
            start_sparse: told the place of a sparse gradient; returns whether it takes care of it.
        """
        layout = self._layout = self._gradients.borrow(self)
        with torch.no_grad():
            self._kept = self._copy_in(layout, start_sparse)
        self._adopt(self._kept, layout.slots[self._places])
        self.launched = self._submit(layout)

    def _copy_in(self, layout: Layout, start_sparse: Callable[[int], bool]) -> list[int]:
        """Put the gradients into the bucket's memory; returns the places of those that are reduced there."""
        slots = layout.slots[self._places]
        small_slots, small_gradients = [], []
        factor = self._factor
        kept = []
        for place, (parameter, slot, large) in enumerate(zip(self.parameters, slots, self._large, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                slot.zero_()
            elif gradient is slot:
                if factor != 1.0:
                    slot.mul_(factor)
            elif gradient.layout is not torch.strided:
                if start_sparse(place):
                    continue
                slot.copy_(gradient.to_dense()).mul_(factor)
            elif large and gradient.dtype == slot.dtype:
                torch.mul(gradient, factor, out=slot)
            else:
                small_slots.append(slot)
                small_gradients.append(gradient)
            kept.append(place)
        if small_slots:
            torch._foreach_copy_(small_slots, small_gradients)
            if factor == 1.0:
                pass
            elif len(small_slots) == len(slots):
                layout.part(*self._elements).mul_(factor)
            else:
                torch._foreach_mul_(small_slots, factor)
        return kept

    def _submit(self, layout: Layout) -> Handle:
        """Submit what was copied in."""
        pieces = layout.pieces[self._places]
        if len(self._kept) < len(pieces) or self._adopts:
            return submit_prepared(
                [self._requests[place] for place in self._kept], [pieces[place] for place in self._kept]
            )
        if self._together is None or self._together[0] is not layout:
            self._together = layout, join(self._requests, pieces, layout.part(*self._elements))
        return submit_together(self._together[1])

    def _adopt(self, places: Sequence[int], slots: Sequence[torch.Tensor]) -> None:
        """Let go of what was copied in, so that there are no two gradients of all parameters at once."""
        if not self._adopts:
            return
        for place in places:
            parameter, slot = self.parameters[place], slots[place]
            gradient = parameter.grad
            if gradient is not None and gradient is not slot and gradient.layout is torch.strided:
                parameter.grad = slot

    def remember_versions(self) -> None:
        """Note what the gradients are now, so that `finish` can tell whether backward has added to them."""
        self._versions = self._read_versions()

    def _read_versions(self) -> list[int]:
        return [getattr(parameter.grad, "_version", 0) for parameter in self.parameters]

    def was_touched(self) -> bool:
        """Whether gradients were changed since `remember_versions`."""
        return bool(self._versions) and self._versions != self._read_versions()

    def finish(self) -> None:
        """Take the reduced gradients.  They have to be there.

        Raises:
            HorovodInternalError: the reduction failed, on all ranks.
        """
        launched, self.launched = self.launched, None
        self.remaining = len(self.parameters)
        self._before = None
        self._gradients.give_back(self)
        if launched is not None:
            check_outcome(launched)
        slots = self._layout.slots[self._places]
        for place in self._kept:
            parameter, slot = self.parameters[place], slots[place]
            gradient = parameter.grad
            if gradient is slot:
                continue
            if gradient is not None and gradient.layout is not torch.strided:
                parameter.grad = slot.to_sparse(gradient.sparse_dim())
            else:
                parameter.grad = slot


def _mark(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """What changes when backward adds to a gradient or makes a new one; holds no reference to it."""
    return None if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001  torch has no other name for it


def can_be_laid_out(parameter: torch.Tensor) -> bool:
    """Whether the elements of a parameter fill a piece of memory without gaps or overlaps."""
    expected = 1
    for stride, length in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return parameter.layout is torch.strided and parameter.numel() > 0 and parameter.dtype in DTYPE_NAMES


def lay_out(
    names: dict[torch.Tensor, str],
    *,
    op: ReduceOp,
    predivide_factor: float,
    most_nbytes: int,
    process_set: ProcessSet,
) -> list[Bucket]:
    """Put parameters into buckets, which are filled from the last parameter, since backward begins there.

    All buckets of a dtype and device share one piece of memory in the order of the parameters, and the earlier ones have
    the higher priority: whatever is ready together then lies together, too.

    Args:
        names: of the parameters, in the order of the model.
        most_nbytes: no bucket is larger, unless it holds one parameter only.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for parameter in names:
        alike.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    buckets = []
    for parameters in alike.values():
        memory = GradientMemory(parameters)
        first_element = 0
        cuts = cut([parameter.nbytes for parameter in parameters], most_nbytes)
        for priority, (start, end) in enumerate(reversed(cuts)):
            part = parameters[start:end]
            buckets.append(
                Bucket(
                    part,
                    [names[parameter] for parameter in part],
                    memory,
                    start,
                    first_element,
                    op=op,
                    predivide_factor=predivide_factor,
                    priority=len(cuts) - priority,
                    process_set=process_set,
                )
            )
            first_element += sum(parameter.numel() for parameter in part)
    return buckets


def cut(nbytes: Sequence[int], most_nbytes: int) -> list[tuple[int, int]]:
    """Cut parameters, given by their sizes, into buckets; returns the bounds of each, the last parameters first."""
    bounds = []
    end = len(nbytes)
    first_end, first_total = 0, 0
    while first_end < end and (
        first_end == 0 or first_total + nbytes[first_end] <= min(LAST_BUCKET_NBYTES, most_nbytes)
    ):
        first_total += nbytes[first_end]
        first_end += 1
    if sum(nbytes) <= min(BUCKET_NBYTES, most_nbytes) // 2:
        return [(0, end)] if end else []
    limit = min(BUCKET_NBYTES, most_nbytes)
    start, total = end, 0
    while start > first_end:
        if total and total + nbytes[start - 1] > limit:
            bounds.append((start, end))
            end, total = start, 0
        start -= 1
        total += nbytes[start]
    if end > start:
        bounds.append((start, end))
    if first_end:
        bounds.append((0, first_end))
    return bounds
