"""What a timeline says of an executed collective: the args of its span (docs/timeline-format.md).

A training executes the same batches again and again, so what does not change from step to step is put together once a batch.
"""

from typing import Any, Final

from ...timeline.record import recorder
from ...timeline.record.shard_format import Call, describe_calls
from .binding import ProcessGroup
from .control.messages import Request
from .operations import ReduceOp
from .work import Batch, Buffer, whole_of

#: Batches that are remembered; a training repeats a few.
MAX_KNOWN: Final = 256

#: A member of an enum is looked up, and named, by functions in Python.
_OPS: Final = {int(op): op.name.lower() for op in ReduceOp}

Args = dict[str, Any]


def nbytes_of(batch: Batch) -> int:
    """What this rank brings to a collective."""
    whole: Buffer | None = whole_of(batch.entries)
    return sum([entry.tensor.nbytes for entry in batch.entries]) if whole is None else whole.nbytes


class Descriptions:
    """Describes executed collectives.  Any thread may call it."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._known: dict[tuple[int, ...], tuple[ProcessGroup, list[Request], set[Call], Args]] = {}
        """By process set, whether values came along, and ids of the tensors."""

    def describe(self, batch: Batch, group: ProcessGroup, error: str | None, device_ns: int | None) -> Args:
        """Args of the span of a collective.

        Args:
            device_ns: when the device was there, where one does it: hosts ask long before, and say nothing of who is late.
        """
        response = batch.response
        callers, submitted_ns = recorder.origins(batch.entries)
        args = {"seq": response.seq, **self._constants(batch, group, callers)}
        writer = recorder.timeline()
        if writer is not None:
            args["submitted"] = writer.ts(submitted_ns if device_ns is None else device_ns)
            args["negotiated"] = writer.ts(batch.negotiated_ns)
            if response.arrivals_ns and device_ns is None:
                args["arrivals"] = [writer.ts(at_ns) for at_ns in response.arrivals_ns]
        if error is not None:
            args["error"] = error
        return args

    def _constants(self, batch: Batch, group: ProcessGroup, callers: set[Call]) -> Args:
        """What is the same whenever these tensors travel together, asked for by the same."""
        response = batch.response
        if not response.ids:
            return _constants_of(batch, group, callers)
        key = (response.process_set, bool(response.results), *response.ids)
        known = self._known.get(key)
        # An id may come to stand for another shape, and a process set's number, with its ids, for another set.
        requests = [entry.request for entry in batch.entries]
        if known is not None and known[0] is group and known[1] == requests and known[2] == callers:
            return known[3]
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        constants = _constants_of(batch, group, callers)
        self._known[key] = group, requests, callers, constants
        return constants


def _constants_of(batch: Batch, group: ProcessGroup, callers: set[Call]) -> Args:
    response, request = batch.response, batch.entries[0].request
    args: Args = {
        "process_set": response.process_set,
        "dtype": request.dtype,
        "bytes": nbytes_of(batch),
        "tensors": len(batch.entries),
        "algorithm": "control" if response.results else group.algorithm(request.device),
        **describe_calls(callers),
    }
    if response.process_set:
        args["ranks"] = list(group.ranks)
    if request.kind.reduces:
        args["op"] = _OPS[request.op]
    return args
