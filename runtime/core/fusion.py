"""Which tensors travel together: a pure function of what is ready, taken by the coordinator for all ranks."""

from collections.abc import Iterable, Sequence
from typing import Final

from ...timeline.vocabulary import DTYPE_NBYTES
from .control.messages import Request
from .kinds import Kind

#: Most characters of names in a batch, so that no message about it grows beyond what is taken.
_MAX_NAMED: Final = 1 << 23


class Negotiated:
    """A tensor that all ranks of its process set have asked for.  Not to be changed: the coordinator hands it out again."""

    __slots__ = (
        "absent",
        "arrivals_ns",
        "error",
        "first_dimensions",
        "fusion_key",
        "id",
        "nbytes",
        "order",
        "request",
        "sizes",
    )

    def __init__(
        self,
        *,
        id: int,  # noqa: A002  the field's name everywhere
        request: Request,
        arrivals_ns: tuple[int, ...],
        error: str = "",
        first_dimensions: tuple[int, ...] = (),
        sizes: list[list[int]] | None = None,
        absent: bool = False,
        order: int = 0,
    ) -> None:
        """Describe it.

        Args:
            request: as the first rank asked; the ranks agree in all that matters for fusion.
            arrivals_ns: when each rank of the process set asked, on the coordinator's clock, 0 where that is not known.
            first_dimensions: for allgather the length of each rank's first dimension.
            sizes: what the answer says besides.
            absent: whether some rank has joined and brings zeros.
            order: its place among what is ready at the same time, and has the same priority.
        """
        self.id = id
        self.request = request
        self.arrivals_ns = arrivals_ns
        self.error = error
        self.first_dimensions = first_dimensions
        self.sizes = sizes or []
        self.absent = absent
        self.order = order
        self.nbytes = self._count_nbytes()
        """What it occupies in a fusion buffer: its own size, and for allgather the gathered one."""
        self.fusion_key = self._key()
        """Tensors with equal keys may share a buffer; None travels alone."""

    def _count_nbytes(self) -> int:
        request = self.request
        if not request.kind.recorded:
            return 0
        elements = 1
        for length in request.shape[1:] if request.kind is Kind.ALLGATHER else request.shape:
            elements *= length
        if request.kind is Kind.ALLGATHER:
            elements *= sum(self.first_dimensions)
        return elements * DTYPE_NBYTES[request.dtype]

    def _key(self) -> tuple[object, ...] | None:
        request = self.request
        if self.error or not request.kind.fusible:
            return None
        key = (request.kind, request.process_set, request.device, request.dtype, self.absent)
        if request.kind is Kind.ALLGATHER:
            return key
        return (*key, request.op, request.prescale, request.postscale)


def in_order(ready: Iterable[Negotiated]) -> list[Negotiated]:
    """What is ready, as it shall be executed: higher priority first, then in the order in which the names were first asked for.

    So a batch is the same whether its tensors were asked for by number or by name.  What changes who takes part comes last.
    """
    return sorted(ready, key=lambda tensor: (tensor.request.kind.changes_ranks, -tensor.request.priority, tensor.order))


def fuse(ready: Sequence[Negotiated], threshold_nbytes: int) -> list[list[Negotiated]]:
    """Cut `ready` into batches, each of which is executed as one collective.

    Horovod's rule: the first tensor seeds a batch; the following ones join if they are compatible and fit.  One that
    does not is set aside and keeps its place at the head of the rest, and the search looks past it as long as the bytes
    taken and set aside stay within the threshold.  A tensor larger than the threshold travels alone; a threshold of 0
    turns fusion off.

    Args:
        threshold_nbytes: most bytes in a batch of more than one tensor.
    """
    batches = []
    waiting = list(ready)
    while waiting:
        seed, *others = waiting
        key = seed.fusion_key
        batch, aside = [seed], []
        taken, passed, named = seed.nbytes, 0, len(seed.request.name)
        position = 0
        if key is not None:
            for candidate in others:
                if taken + passed > threshold_nbytes:
                    break
                position += 1
                nbytes = candidate.nbytes
                length = len(candidate.request.name)
                if candidate.fusion_key == key and taken + nbytes <= threshold_nbytes and named + length <= _MAX_NAMED:
                    batch.append(candidate)
                    taken += nbytes
                    named += length
                else:
                    aside.append(candidate)
                    passed += nbytes
        batches.append(batch)
        waiting = aside + others[position:]
    return batches
