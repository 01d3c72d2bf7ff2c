"""Gradients that a framework hands over all at once, reduced in one piece of memory.

For frameworks whose gradients are not torch's: they come as a list when all of them are there, and the results go back as views
of that memory.  Each gradient is submitted under its own name, so that a timeline tells of it, also where several of them come
as one tensor.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final

import torch

from ..core import engine
from ..core.calls import calling
from ..core.control.messages import Request
from ..core.errors import HorovodInternalError
from ..core.kinds import Kind
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, require_id
from ..core.work import Handle
from .data_plane.dtypes import DTYPE_NAMES
from .functions import broadcast_object
from .gathering import allgather, allgather_async
from .prepared import check_outcome, submit_prepared, wait_for_handles
from .submission import require_running, synchronize

#: Bytes at multiples of which a result begins, as kernels of TensorFlow and XLA ask of what they are handed.
ALIGNMENT: Final = 64


def takes_part(process_set: ProcessSet) -> bool:
    """Whether there is anything to reduce: not on a rank alone, nor on one outside the process set."""
    return bool(process_set.included()) and (process_set.size() or 1) > 1


@dataclass(slots=True)
class _Memory:
    """Where the tensors of one dtype and device lie."""

    places: list[int]
    """Which tensors those are."""
    whole: torch.Tensor
    pieces: list[torch.Tensor]
    """Of each gradient, with what fills it up to the next, so that they lie one behind the other."""
    slots: list[torch.Tensor]
    """Of each tensor, in its shape."""

    @property
    def is_free(self) -> bool:
        """Whether no result in it is referenced any more."""
        storage: Any = self.whole.untyped_storage()
        users: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001  nothing public counts them
        return users <= 1 + len(self.pieces) + len(self.slots) + 1


def _lay_out(tensors: Sequence[torch.Tensor], parcels: Sequence["Parcel"]) -> list[_Memory]:
    alike: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for place, tensor in enumerate(tensors):
        alike.setdefault((tensor.dtype, tensor.device), []).append(place)
    made = []
    for (dtype, device), places in alike.items():
        step = ALIGNMENT // dtype.itemsize
        numels = [tensors[place].numel() for place in places]
        ends = list(accumulate(-(-numel // step) * step for numel in numels))
        starts = [0, *ends[:-1]]
        # Zeros, since what lies between two gradients is added up with them.
        whole = torch.zeros(ends[-1], dtype=dtype, device=device)
        pieces = []
        for place, start, end in zip(places, starts, ends, strict=True):
            cuts = [*accumulate((numel for _, numel in parcels[place][:-1]), initial=start), end]
            pieces += [whole[first:last] for first, last in pairwise(cuts)]
        slots = [
            whole[start : start + numel].view(tensors[place].shape)
            for place, start, numel in zip(places, starts, numels, strict=True)
        ]
        made.append(_Memory(places, whole, pieces, slots))
    return made


Parcel = tuple[tuple[int, int], ...]
"""The gradients that lie in one tensor, one behind the other: the place of each among the names, and how many elements it has."""


@dataclass(frozen=True, slots=True)
class _Started:
    """A reduction under way."""

    results: list[torch.Tensor]
    """What comes of it, when the handles are done."""
    handles: list[Handle] = field(default_factory=list)


class FlatReduction:
    """Reduces lists of gradients of the same variables."""

    def __init__(
        self,
        names: Sequence[str],
        op: ReduceOp,
        scales: tuple[float, float],
        process_set: ProcessSet,
        *,
        agree: bool = True,
        parcels: Sequence[Parcel] | None = None,
    ) -> None:
        """Prepare.

        Args:
            names: of the variables.
            op: the reduction.
            scales: prescale and postscale factor.
            agree: whether the ranks take the names of the first one, since a library that numbers its layers may have come to
                other numbers here.
            parcels: what lies in each tensor that is handed over; None where each is the gradient of the name at its place.
        """
        self._parcels = parcels
        self._started: _Started | None = None
        self._own_names = list(names)
        self._op, self._scales, self._process_set, self._agree = op, scales, process_set, agree
        self._engine: engine.Engine | None = None
        self._names: list[str] = []
        self._shapes: list[tuple[torch.Size, torch.dtype, torch.device]] = []
        self._kept: list[list[_Memory]] = []
        self._requests: list[Request] = []

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients over all ranks; in memory that is not reused while one of them is referenced.

        Raises:
            HorovodInternalError: it failed, on all ranks.
        """
        self.start(tensors)
        return finish([self])[0]

    def start(self, tensors: Sequence[torch.Tensor]) -> None:
        """Begin to reduce gradients, which may change as soon as this returns; `finish` has the results.

        Raises:
            HorovodInternalError: the runtime has been shut down, or the ranks train different variables.
            ValueError: what was started before is under way.
        """
        running = require_running()
        if not tensors or not takes_part(self._process_set):
            self._started = _Started(list(tensors))
            return
        if self._engine is not running:
            self._names = agree_on_names(self._own_names, self._process_set) if self._agree else self._own_names
            self._engine, self._shapes = running, []
        shapes = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        if shapes != self._shapes:
            self._shapes, self._kept = shapes, []
        memories = self._borrow(tensors)
        with torch.no_grad():
            for memory in memories:
                torch._foreach_copy_(memory.slots, [tensors[place] for place in memory.places])
        handle = submit_prepared(self._requests, [piece for memory in memories for piece in memory.pieces])
        results: list[torch.Tensor] = list(tensors)
        for memory in memories:
            for place, slot in zip(memory.places, memory.slots, strict=True):
                results[place] = slot.view(slot.shape)  # of its own, by which the memory is known to be in use
        self._started = _Started(results, [handle])

    def take_started(self) -> _Started:
        """What `start` has begun; the next may be started then."""
        started, self._started = self._started, None
        assert started is not None, "nothing was started"
        return started

    def _borrow(self, tensors: Sequence[torch.Tensor]) -> list[_Memory]:
        for memories in self._kept:
            if all(memory.is_free for memory in memories):
                return memories
        parcels = self._parcels
        if parcels is None:
            parcels = [((place, tensor.numel()),) for place, tensor in enumerate(tensors)]
        # Of what comes by itself the tensor knows its size best.
        parcels = [
            ((parcel[0][0], tensor.numel()),) if len(parcel) == 1 else parcel
            for tensor, parcel in zip(tensors, parcels, strict=True)
        ]
        memories = _lay_out(tensors, parcels)
        self._kept = [*self._kept[-1:], memories]
        set_id = require_id(self._process_set, "allreduce")
        self._requests = [
            Request(
                name=f"allreduce.{self._names[place]}",
                kind=Kind.ALLREDUCE,
                dtype=DTYPE_NAMES[piece.dtype],
                shape=tuple(piece.shape),
                unpadded=(numel,),
                op=int(self._op),
                prescale=self._scales[0],
                postscale=self._scales[1],
                process_set=set_id,
                device=piece.device.type,
            )
            for memory in memories
            for (place, numel), piece in zip(
                [gradient for place in memory.places for gradient in parcels[place]], memory.pieces, strict=True
            )
        ]
        return memories


def finish(reductions: Sequence[FlatReduction]) -> list[list[torch.Tensor]]:
    """Wait for reductions that were started; the gradients of each over all ranks.

    Raises:
        HorovodInternalError: one of them failed, on all ranks.
    """
    started = [reduction.take_started() for reduction in reductions]
    handles = [handle for each in started for handle in each.handles]
    wait_for_handles(handles)
    failed: HorovodInternalError | None = None
    for handle in handles:
        try:
            check_outcome(handle)
        except HorovodInternalError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return [each.results for each in started]


def agree_on_names(names: Sequence[str], process_set: ProcessSet) -> list[str]:
    """Names that are the same on all ranks: those of the first rank of the process set.

    Raises:
        HorovodInternalError: the ranks train different numbers of variables.
    """
    known = torch.tensor([[len(names), zlib.crc32("\n".join(names).encode())]], device="cpu")
    with calling("parameters", located=False):
        of_all = allgather(known, "gradient_names", process_set).tolist()
        counts = [count for count, _ in of_all]
        if len(set(counts)) > 1:
            raise HorovodInternalError(
                f"the ranks have different numbers of gradients: {', '.join(map(str, counts))}, by rank; every rank has to train "
                "the same variables"
            )
        if len({digest for _, digest in of_all}) == 1:
            return list(names)
        root = (process_set.ranks or [0])[0]
        agreed: list[str] = broadcast_object(list(names), root, "gradient_names", process_set)
        return agreed


def gather_sparse(
    names: Sequence[str], *, average: bool, process_set: ProcessSet
) -> Callable[[Sequence[torch.Tensor]], Any]:
    """What puts the rows of all ranks behind each other; they are their sum, with rows that occur several times.

    Returns:
        A function of values and indices, in turn, which yields the same of all ranks.
    """

    def gather(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        require_running()
        if not takes_part(process_set):
            return list(tensors)
        handles = []
        with calling("gradient", blocking=False, located=False):
            for name, values, indices in zip(names, tensors[::2], tensors[1::2], strict=True):
                handles.append(allgather_async(values, f"{name}.values", process_set))
                handles.append(allgather_async(indices, f"{name}.indices", process_set))
        gathered: list[torch.Tensor] = [synchronize(handle) for handle in handles]
        if average:
            size = process_set.size() or 1
            gathered[::2] = [values / size for values in gathered[::2]]
        return gathered

    return gather
