"""What NCCL says of its own operations in an export of Nsight Systems: payloads of its NVTX ranges.

A payload is bytes behind a head of 32, laid out as NVTX_PAYLOAD_SCHEMA_ENTRIES says; the head names the schema.  NCCL gives the
size of one message: what a rank contributes, and for a reducescatter what it gets.
"""

import json
import struct
from collections import defaultdict
from typing import Any, Final, NamedTuple

from .kineto_tables import kind_of
from .nsys_database import Export, Tables

#: domain, schema, size of the payload, size with the head; the others are reserved.
_HEAD: Final = struct.Struct("<I4xI4xQQ")
#: Types of nvtxPayloadEntryType in which sizes and numbers are given (nvToolsExtPayload.h), on a 64-bit system.
_TYPES: Final = {
    5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q",
}  # fmt: skip
_SIZE, _COMMUNICATOR, _RANKS = "Message size [bytes]", "NCCL communicator ID", "No. of ranks"
_SEND, _RECV = "ncclSend", "ncclRecv"
_MAX_NBYTES: Final = 2**62
#: So many operations may wait for the end of their group; of more the oldest are forgotten.
_MAX_OPEN: Final = 10_000

Fields = dict[str, int]
"""What a payload says, by label."""


class Told(NamedTuple):
    """One operation that NCCL was asked for."""

    start: int
    name: str
    nbytes: int
    communicator: int


class NcclPayloads:
    """Sizes of NCCL's operations, as the threads asked for them."""

    def __init__(self, database: Tables) -> None:
        """Learn how payloads are laid out."""
        self._schemas: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
        for number, kind, name, offset in zip(
            *database.read("NVTX_PAYLOAD_SCHEMA_ENTRIES", ("schemaId", "type", "name", "offset")), strict=True
        ):
            if name in {_SIZE, _COMMUNICATOR, _RANKS} and kind in _TYPES and number is not None:
                self._schemas[number].append((name, _TYPES[kind], offset or 0))
        self._ranks: dict[int, int] = {}
        """How many ranks a communicator has."""
        self._asked: dict[int, list[Told]] = defaultdict(list)
        """By globalTid."""

    def note(self, name: str, start: int, thread: int, binary: Any, text: Any) -> None:
        """Take a range's payload, whatever it is: bytes as they came, as hexadecimal digits, or JSON."""
        fields = self._fields(binary) or _fields_of_text(text)
        if _RANKS in fields and fields[_RANKS] > 0:
            self._ranks[fields.get(_COMMUNICATOR, 0)] = fields[_RANKS]
        if 0 <= fields.get(_SIZE, -1) < _MAX_NBYTES:
            self._asked[thread].append(Told(start, name, fields[_SIZE], fields.get(_COMMUNICATOR, 0)))

    def _fields(self, binary: Any) -> Fields:
        if isinstance(binary, str):
            try:
                binary = bytes.fromhex(binary)
            except ValueError:
                return {}
        if not isinstance(binary, bytes) or len(binary) < _HEAD.size:
            return {}
        _, number, _, _ = _HEAD.unpack_from(binary)
        found = {}
        for name, layout, offset in self._schemas.get(number, ()):
            at = _HEAD.size + offset
            if 0 <= at <= len(binary) - struct.calcsize(layout):
                (found[name],) = struct.unpack_from(layout, binary, at)
        return found

    def sizes(self, export: Export) -> list[int]:
        """Bytes of each of the export's collectives, -1 where NCCL does not say.

        A kernel is launched by the call that asks for it, or by the end of the group that the call is in: it has done all of its
        kind that its thread has asked for since the one before.
        """
        order = sorted(range(len(export.collectives)), key=lambda row: export.collectives[row].launched)
        asked = {thread: sorted(told) for thread, told in self._asked.items()}
        places: dict[int, int] = defaultdict(int)
        open_: dict[int, list[Told]] = defaultdict(list)
        sizes = [-1] * len(order)
        for row in order:
            collective = export.collectives[row]
            thread = collective.thread
            told = asked.get(thread, [])
            while places[thread] < len(told) and told[places[thread]].start <= collective.launched:
                open_[thread].append(told[places[thread]])
                places[thread] += 1
            del open_[thread][:-_MAX_OPEN]
            mine = [each for each in open_[thread] if _may_be(each.name, collective.kind)]
            if mine:
                sizes[row] = self._total(mine)
                open_[thread] = [each for each in open_[thread] if each not in mine]
        return sizes

    def _total(self, told: list[Told]) -> int:
        """What a rank contributes to operations that one kernel does."""
        sent = sum(each.nbytes for each in told if each.name == _SEND)
        received = sum(each.nbytes for each in told if each.name == _RECV)
        others = sum(
            each.nbytes * (self._ranks.get(each.communicator, 1) if kind_of(each.name) == "reducescatter" else 1)
            for each in told
            if each.name not in {_SEND, _RECV}
        )
        return max(sent, received) + others


def _may_be(name: str, kind: str) -> bool:
    """Whether a kernel of a kind does what a call asks for; kernels for several kinds say none."""
    if kind == "other":
        return True
    asked = "sendrecv" if name in {_SEND, _RECV} else kind_of(name)
    return asked == kind or (kind == "sendrecv" and asked == "alltoall")


def _fields_of_text(text: Any) -> Fields:
    """A payload that the exporter has decoded."""
    if not isinstance(text, str) or not text.startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int) and name in {_SIZE, _COMMUNICATOR, _RANKS}
    }
