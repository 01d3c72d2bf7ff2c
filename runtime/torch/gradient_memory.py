"""The memory that gradients lie in, and whether a program still looks at what lay there before.

`.grad` is a piece of that memory (see `buckets.py`).  A program may keep a gradient over `zero_grad()`, or a view of one, and
expects it to stay what it was.  So before new gradients are put over old ones that the parameters have let go of, the
references to these are counted; if somebody has one, the new ones are laid out elsewhere, and all of them, so that
neighbours stay neighbours.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import torch

#: How often, and how long apart, one looks again before gradients are taken for kept.
_LOOKS: Final = 10
_PAUSE_S: Final = 0.0001

_count_references: Final = sys.getrefcount

# What torch's own CUDA graphs ask; the public interface has nothing like it.
_count_users: Final[Any] = torch._C._storage_Use_Count  # noqa: SLF001


class Layout:
    """Gradients of some parameters, one behind the other."""

    def __init__(self, parameters: Sequence[torch.Tensor], memory: torch.Tensor) -> None:
        """Cut `memory`, flat and as long as all parameters together."""
        self.memory = memory
        self.pieces = list(torch.split(memory, [parameter.numel() for parameter in parameters]))
        """The gradients as flat tensors."""
        self.slots = [_shaped_like(piece, parameter) for piece, parameter in zip(self.pieces, parameters, strict=True)]
        """The gradients as `.grad` has them."""
        self._storage = memory.untyped_storage()
        self._own_references = list(map(_count_references, self.slots))
        self._own_users = _count_users(self._storage._cdata)  # noqa: SLF001
        self._parts: dict[tuple[int, int], torch.Tensor] = {}

    def part(self, start: int, end: int) -> torch.Tensor:
        """The memory between two elements; the same tensor every time."""
        part = self._parts.get((start, end))
        if part is None:
            part = self._parts[start, end] = self.memory[start:end]
            self._own_users += 1
        return part

    def is_free(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether only the parameters reference it.

        A gradient that a parameter still has does not count: backward adds to it in place, and whoever keeps it sees that.
        """
        has_views = _count_users(self._storage._cdata) != self._own_users  # noqa: SLF001
        references = list(map(_count_references, self.slots))
        if references == self._own_references and not has_views:
            return True
        let_go = [
            place
            for place, (parameter, slot) in enumerate(zip(parameters, self.slots, strict=True))
            if parameter.grad is not slot
        ]
        if has_views and let_go:
            return False
        return all(references[place] == self._own_references[place] for place in let_go)


def _shaped_like(piece: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A piece of memory with the shape and strides of a parameter, which autograd gives to gradients.

    It counts its own changes (`_version`): those that the runtime makes to the memory are none of the program's.
    """
    return piece.as_strided(parameter.shape, parameter.stride(), piece.storage_offset()).data


class GradientMemory:
    """Where the gradients of parameters of one dtype and device lie, for several buckets."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        """Lay out the gradients in the order of the parameters.

        Raises:
            RuntimeError: there is no memory for them.
        """
        self._parameters = list(parameters)
        self.layout = Layout(self._parameters, self._allocate())
        """Where they lie now; stays while something borrows it."""
        self._other: Layout | None = None
        self._borrowers: set[object] = set()
        self._was_kept = False
        """Whether gradients were referenced the last time."""

    def _allocate(self) -> torch.Tensor:
        first = self._parameters[0]
        numel = sum(parameter.numel() for parameter in self._parameters)
        # Should the optimizer be made in inference mode: gradients must be what backward can add to.
        with torch.inference_mode(mode=False):
            return torch.zeros(numel, dtype=first.dtype, device=first.device)

    def borrow(self, borrower: object) -> Layout:
        """Where to put new gradients, until `give_back`."""
        if not self._borrowers:
            self._move_if_kept()
        self._borrowers.add(borrower)
        return self.layout

    def give_back(self, borrower: object) -> None:
        """The gradients have been handed to the parameters."""
        self._borrowers.discard(borrower)

    def _is_let_go(self) -> bool:
        """Whether the gradients of the previous step are no longer referenced."""
        is_free = self.layout.is_free(self._parameters)
        # The runtime's own threads look at them for a moment after they have said that they are done.
        for _ in range(0 if self._was_kept else _LOOKS):
            if is_free:
                break
            time.sleep(_PAUSE_S)
            is_free = self.layout.is_free(self._parameters)
        self._was_kept = not is_free
        return is_free

    def _move_if_kept(self) -> None:
        """Programs that keep gradients mostly do so for a step, so two layouts that take turns are enough."""
        other = self._other
        if self._is_let_go():
            if other is not None and other.is_free(self._parameters):
                self._other = None
            return
        if other is None or not other.is_free(self._parameters):
            other = Layout(self._parameters, self._allocate())
        self.layout, self._other = other, self.layout
