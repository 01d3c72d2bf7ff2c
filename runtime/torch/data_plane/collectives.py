"""What each kind of collective does with a batch: pack, operate on the transport, unpack.

A batch of one tensor goes without a fusion buffer, and so does one whose tensors lie one behind the other in memory (as the
gradients of a `DistributedOptimizer` do): the memory itself is reduced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from ....timeline.record import recorder
from ....timeline.record.nvtx_ranges import NvtxRanges
from ....timeline.vocabulary import MEMCPY_IN, MEMCPY_OUT, Category, LaneKind
from ...core.kinds import Kind
from ...core.operations import ReduceOp
from ...core.work import Batch, Entry, whole_of
from .adasum import adasum
from .arithmetic import scale
from .fusion_buffers import FusionBuffers
from .small import from_bytes
from .transports import TransportGroup


@dataclass(frozen=True, slots=True)
class Site:
    """Where a batch is executed."""

    group: TransportGroup
    buffers: FusionBuffers


def chunk_rows(rows: int, size: int) -> list[int]:
    """How many rows each of `size` ranks gets of a reducescatter: equal shares, the first ranks one more of the rest."""
    share, rest = divmod(rows, size)
    return [share + (rank < rest) for rank in range(size)]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as a vector, without a copy."""
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def _operation(site: Site, kind: str, tensor: torch.Tensor) -> "_Recorded":
    """The span of the operation itself, named as Horovod names it."""
    name = _name_of(site.group.algorithm(tensor.device.type), kind)
    return _Recorded(Category.COLLECTIVE, name, tensor.nbytes, on_device=not tensor.is_cpu)


def _name_of(algorithm: str, kind: str) -> str:
    return f"{algorithm.upper()}_{'BCAST' if kind == 'broadcast' else kind.upper()}"


def _copying(name: str, buffer: torch.Tensor) -> "_Recorded":
    return _Recorded(Category.FUSION, name, buffer.nbytes, on_device=not buffer.is_cpu)


class _Recorded:
    """A block that is a part of a collective: when the device does it, where one does, and in NVTX when it is handed out.

    No generator with `contextmanager`, which costs more than what is recorded, also while nothing is.
    """

    __slots__ = ("_begun", "_category", "_name", "_nbytes", "_nvtx", "_on_device", "_opened", "_timed")

    def __init__(self, category: Category, name: str, nbytes: int, *, on_device: bool) -> None:
        self._category, self._name, self._nbytes, self._on_device = category, name, nbytes, on_device
        self._opened: recorder.OpenSpan | None = None
        self._timed: recorder.Device | None = None
        self._nvtx: NvtxRanges | None = None
        self._begun: Any = None

    def __enter__(self) -> None:
        category, name, nbytes = self._category, self._name, self._nbytes
        if not self._on_device:
            self._opened = recorder.begin(category, name, LaneKind.COMMUNICATION, payload=nbytes)
            return
        self._timed = recorder.device() if recorder.is_timeline_on() else None
        self._nvtx = recorder.nvtx()
        if self._timed is not None:
            self._begun = self._timed.mark()
        if self._nvtx is not None:
            self._nvtx.push(category, name, nbytes)

    def __exit__(self, *_: object) -> None:
        recorder.end(self._opened)
        if self._nvtx is not None:
            self._nvtx.pop()
        if self._timed is not None:
            marks = (self._begun, self._timed.mark())
            self._timed.span(LaneKind.COMMUNICATION, self._category, self._name, marks, None)


def _pack(site: Site, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
    """Copy flat tensors into one buffer; returns it and their sizes."""
    sizes = [tensor.numel() for tensor in tensors]
    buffer = site.buffers.take(sum(sizes), tensors[0].dtype, tensors[0].device)
    with _copying(MEMCPY_IN, buffer):
        torch.cat(list(tensors), out=buffer)
    return buffer, sizes


def _adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The memory of `tensors` as one vector, if they lie one behind the other in one storage."""
    end = 0
    for tensor in tensors:
        start = tensor.data_ptr()
        if start != end and end:
            return None
        end = start + tensor.nbytes
    first, last = tensors[0], tensors[-1]
    if first.untyped_storage().data_ptr() != last.untyped_storage().data_ptr():
        return None
    return first.as_strided(((end - first.data_ptr()) // first.element_size(),), (1,))


def _output_of(entry: Entry) -> torch.Tensor:
    output: torch.Tensor | None = entry.output
    assert output is not None  # only kinds whose size comes with the answer allocate later
    return output


def _allreduce(site: Site, batch: Batch) -> None:
    entries, size = batch.entries, site.group.size
    request = entries[0].request
    average = request.op == ReduceOp.AVERAGE
    op = ReduceOp.SUM if average else ReduceOp(request.op)
    postscale = request.postscale / size if average else request.postscale
    whole = whole_of(entries)
    outputs = [flat(_output_of(entry)) for entry in entries] if whole is None else []
    sizes: list[int] = []
    if whole is not None:
        buffer = whole
    elif len(entries) == 1:
        buffer = outputs[0]
        if entries[0].output is not entries[0].tensor:
            buffer.copy_(flat(entries[0].tensor))
    else:
        in_place = all(entry.output is entry.tensor for entry in entries)
        together = _adjacent(outputs) if in_place else None
        if together is None:
            buffer, sizes = _pack(site, outputs if in_place else [flat(entry.tensor) for entry in entries])
        else:
            buffer = together
    scale(buffer, request.prescale)
    if size > 1 and buffer.numel():
        with _operation(site, "adasum" if op is ReduceOp.ADASUM else "allreduce", buffer):
            if op is ReduceOp.ADASUM:
                adasum(site.group, buffer, sizes or [entry.tensor.numel() for entry in entries])
            else:
                site.group.transport(buffer.device).allreduce(buffer, op)
    scale(buffer, postscale)
    if sizes:
        with _copying(MEMCPY_OUT, buffer):
            torch._foreach_copy_(outputs, site.buffers.split(buffer.dtype, buffer.device, sizes))


def _allgather(site: Site, batch: Batch) -> None:
    entries, sizes = batch.entries, batch.response.sizes
    for entry, rows in zip(entries, sizes, strict=True):
        entry.output = entry.tensor.new_empty((sum(rows), *entry.tensor.shape[1:]))
    row_numels = [entry.tensor.shape[1:].numel() for entry in entries]
    ranks = range(site.group.size)
    counts = [[rows[rank] * numel for rows, numel in zip(sizes, row_numels, strict=True)] for rank in ranks]
    if len(entries) == 1:
        output = flat(_output_of(entries[0]))
        _gather(site, output, [count for (count,) in counts], flat(entries[0].tensor))
        return
    packed, _ = _pack(site, [flat(entry.tensor) for entry in entries])
    source = packed.clone()  # the gathered buffer below is the same memory
    gathered = site.buffers.take(sum(map(sum, counts)), source.dtype, source.device)
    _gather(site, gathered, [sum(of_rank) for of_rank in counts], source)
    with _copying(MEMCPY_OUT, gathered):
        pieces = iter(torch.split(gathered, [count for of_rank in counts for count in of_rank]))
        filled = [0] * len(entries)
        for of_rank in counts:
            for number, count in enumerate(of_rank):
                flat(_output_of(entries[number]))[filled[number] : filled[number] + count].copy_(next(pieces))
                filled[number] += count


def _gather(site: Site, output: torch.Tensor, counts: list[int], source: torch.Tensor) -> None:
    with _operation(site, "allgather", source):
        if site.group.size > 1:
            site.group.transport(source.device).allgather(torch.split(output, counts), source)
        else:
            output.copy_(source)


def _broadcast(site: Site, batch: Batch) -> None:
    (entry,) = batch.entries
    output = _output_of(entry)
    root = site.group.ranks.index(entry.request.root)
    if root == site.group.rank and output is not entry.tensor:
        output.copy_(entry.tensor)
    with _operation(site, "broadcast", output):
        if site.group.size > 1:
            site.group.transport(output.device).broadcast(flat(output), root)


def _alltoall(site: Site, batch: Batch) -> None:
    (entry,) = batch.entries
    group, source = site.group, entry.tensor
    sent = entry.extra
    with _operation(site, "alltoall", source):
        received = sent if group.size == 1 else _exchange_counts(site, sent)
        row = source.shape[1:].numel()
        entry.output = source.new_empty((sum(received), *source.shape[1:]))
        used = flat(source).narrow(0, 0, sum(sent) * row)
        if group.size == 1:
            flat(entry.output).copy_(used)
        else:
            transport = group.transport(source.device)
            into = [count * row for count in received]
            transport.alltoall(flat(entry.output), used, into, [count * row for count in sent])
    entry.extra = torch.tensor(received, dtype=torch.int32, device="cpu").to(source.device)


def _exchange_counts(site: Site, sent: Sequence[int]) -> list[int]:
    """How many rows each rank sends to this one, as they send to each other."""
    ones = [1] * site.group.size
    mine = torch.tensor(sent, dtype=torch.int64, device="cpu")
    theirs = torch.empty(len(ones), dtype=torch.int64, device="cpu")
    site.group.transport(mine.device).alltoall(theirs, mine, ones, ones)
    counts: list[int] = theirs.tolist()
    return counts


def _reducescatter(site: Site, batch: Batch) -> None:
    """Tensors of a batch are packed by rank: every rank's rows of all of them lie together."""
    entries, group = batch.entries, site.group
    request = entries[0].request
    postscale = request.postscale / group.size if request.op == ReduceOp.AVERAGE else request.postscale
    rows = [chunk_rows(entry.tensor.shape[0], group.size) for entry in entries]
    numels = [entry.tensor.shape[1:].numel() for entry in entries]
    for entry, shares in zip(entries, rows, strict=True):
        entry.output = entry.tensor.new_empty((shares[group.rank], *entry.tensor.shape[1:]))
    counts = [
        sum(shares[rank] * numel for shares, numel in zip(rows, numels, strict=True)) for rank in range(group.size)
    ]
    pieces = [torch.split(entry.tensor, shares) for entry, shares in zip(entries, rows, strict=True)]
    source, _ = _pack(site, [flat(of_entry[rank]) for rank in range(group.size) for of_entry in pieces])
    scale(source, request.prescale)
    single = len(entries) == 1
    output = flat(_output_of(entries[0])) if single else source.new_empty(counts[group.rank])
    with _operation(site, "reducescatter", source):
        if group.size > 1:
            group.transport(source.device).reducescatter(output, source, counts)
        else:
            output.copy_(source)
    scale(output, postscale)
    if not single:
        outputs = [flat(_output_of(entry)) for entry in entries]
        with _copying(MEMCPY_OUT, output):
            torch._foreach_copy_(outputs, list(torch.split(output, [each.numel() for each in outputs])))


def _nothing(_: Site, __: Batch) -> None:
    """Nothing to move: that all ranks have asked for it is all."""


def _join(_: Site, batch: Batch) -> None:
    batch.entries[0].extra = batch.response.sizes[0][0]


def put_results(batch: Batch) -> None:
    """Take the results that came with the response.

    Raises:
        ValueError: they are longer or shorter than the tensors.
    """
    results, sizes = batch.response.results, batch.response.sizes
    name = _name_of("control", batch.entries[0].request.kind)
    with _Recorded(Category.COLLECTIVE, name, sum(map(len, results)), on_device=False):
        for place, (entry, values) in enumerate(zip(batch.entries, results, strict=True)):
            if entry.output is None:
                with torch.inference_mode(mode=False):
                    entry.output = entry.tensor.new_empty((sum(sizes[place]), *entry.tensor.shape[1:]))
            from_bytes(entry.output, values)


COLLECTIVES: Final[dict[Kind, Callable[[Site, Batch], Any]]] = {
    Kind.ALLREDUCE: _allreduce,
    Kind.ALLGATHER: _allgather,
    Kind.BROADCAST: _broadcast,
    Kind.ALLTOALL: _alltoall,
    Kind.REDUCESCATTER: _reducescatter,
    Kind.BARRIER: _nothing,
    Kind.JOIN: _join,
}
