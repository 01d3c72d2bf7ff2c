"""The tables of a timeline of Horovod's, out of the collectives that were found in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pandas as pd

from ..model.columns import TableBuilder
from ..model.trace import ARRIVAL_COLUMNS, COLLECTIVE_COLUMNS, COUNTER_COLUMNS, TENSOR_COLUMNS, make_table
from ..vocabulary import CYCLE_COUNTER
from .horovod_names import caller_of, common, parameters_of


@dataclass(slots=True)
class Member:
    """A tensor of an executed collective."""

    name: str
    nbytes: int
    submitted_ns: int
    negotiated_ns: int
    start_ns: int
    end_ns: int


_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(slots=True)
class Batch:
    """One executed collective under construction.  There are millions: what most of them do not have takes no room."""

    kind: str
    expected: int = 0
    members: list[Member] = field(default_factory=list)
    ticks: Mapping[int, int] = field(default_factory=lambda: _NOTHING)
    operation: tuple[int, int] = (-1, -1)
    copies: Mapping[str, tuple[int, int]] = field(default_factory=lambda: _NOTHING)
    algorithm: str = ""
    dtype: str = ""
    failed: bool = False

    def tick(self, rank: int, at_ns: int) -> None:
        """A rank was ready at that time, or later."""
        if not isinstance(self.ticks, dict):
            self.ticks = {}
        self.ticks[rank] = max(self.ticks.get(rank, -1), at_ns)

    def copied(self, name: str, start_ns: int, end_ns: int) -> None:
        """One of its tensors was copied."""
        if not isinstance(self.copies, dict):
            self.copies = {}
        first, last = self.copies.get(name, (start_ns, end_ns))
        self.copies[name] = (min(first, start_ns), max(last, end_ns))


def cycles_table(begun_ns: Sequence[int], first_ns: int) -> pd.DataFrame:
    """How long each cycle took, at its end."""
    at_ns = np.sort(np.array(begun_ns, np.int64))
    count = max(len(at_ns) - 1, 0)
    return make_table(
        COUNTER_COLUMNS,
        {
            "rank": np.zeros(count, np.int32),
            "name": np.full(count, CYCLE_COUNTER),
            "ts_ns": at_ns[1:] - first_ns,
            "value": np.diff(at_ns) / 1e6,
        },
    )


def tables_of(batches: list[Batch], first_ns: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Collectives, tensors and arrivals; takes the batches out of their list, as there are millions."""
    collectives = TableBuilder(COLLECTIVE_COLUMNS)
    tensors = TableBuilder(TENSOR_COLUMNS)
    arrivals = TableBuilder(ARRIVAL_COLUMNS)

    def shifted(at_ns: int) -> int:
        return at_ns - first_ns if at_ns >= 0 else -1

    parameters = parameters_of(member.name for batch in batches for member in batch.members)
    batches.reverse()
    for seq in range(len(batches)):
        batch = batches.pop()
        members = batch.members
        if not members:
            continue
        callers = [caller_of(member.name, batch.kind, parameters) for member in members]
        start_ns = min(member.start_ns for member in members)
        end_ns = max(member.end_ns for member in members)
        first, last = batch.operation if batch.operation[0] >= 0 else (start_ns, end_ns)
        sizes = [member.nbytes for member in members]
        collectives.add(
            0,
            0,
            seq,
            batch.kind,
            "",
            batch.dtype,
            batch.algorithm,
            -1 if min(sizes) < 0 else sum(sizes),
            len(members),
            shifted(max(member.submitted_ns for member in members)),
            shifted(max(member.negotiated_ns for member in members)),
            shifted(first),
            last - first,
            sum(end - begin for begin, end in batch.copies.values()),
            common(callers),
            -1,
            "",
        )
        for member, caller in zip(members, callers, strict=True):
            tensors.add(
                0,
                0,
                seq,
                member.name,
                batch.kind,
                member.nbytes,
                shifted(member.submitted_ns),
                shifted(member.negotiated_ns),
                shifted(member.start_ns),
                shifted(member.end_ns),
                caller,
            )
        for rank, at_ns in sorted(batch.ticks.items()):
            arrivals.add(0, seq, rank, shifted(at_ns))
    return collectives.finish(), tensors.finish(), arrivals.finish()
