"""The tables of a timeline of Horovod's, out of the collectives that were found in it.

There are millions of them, most of a single tiny tensor: what is finished is numbers in columns, and only what is under way is an
object.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ..model.columns import TableBuilder
from ..model.trace import ARRIVAL_COLUMNS, COLLECTIVE_COLUMNS, COUNTER_COLUMNS, TENSOR_COLUMNS, make_table
from ..vocabulary import CALLERS, CYCLE_COUNTER, MIXED
from .horovod_names import caller_of, parameters_of

#: What the numbers of callers stand for.
CALLER_NAMES: Final = ("", *CALLERS, MIXED)


@dataclass(slots=True)
class Batch:
    """A collective while it is read."""

    seq: int
    kind: str
    failed: bool = False
    begun: int = 0
    """Tensors of it that have begun and not ended."""
    tensors: int = 0
    """Those that have ended; the rest is what is known of these."""
    nbytes: int = 0
    has_ticks: bool = False
    submitted_ns: int = -1
    negotiated_ns: int = -1
    start_ns: int = -1
    end_ns: int = -1
    operation: tuple[int, int] = (-1, -1)
    copies: dict[str, tuple[int, int]] | None = None
    algorithm: str = ""
    dtype: str = ""

    def copied(self, name: str, start_ns: int, end_ns: int) -> None:
        """One of its tensors was copied."""
        if self.copies is None:
            self.copies = {}
        first, last = self.copies.get(name, (start_ns, end_ns))
        self.copies[name] = (min(first, start_ns), max(last, end_ns))


class Operations:
    """The collectives that are finished, as columns; times as they are in the file."""

    def __init__(self) -> None:
        self.tensors = 0
        """Tensors in finished collectives."""
        self.tensors_with_ticks = 0
        """Those in collectives for which ranks have ticked."""
        rank_0 = {"rank": 0, "process_set": 0, "caller": ""}
        self._collectives = TableBuilder(COLLECTIVE_COLUMNS, {**rank_0, "op": "", "blocking": -1, "where": ""})
        self._tensors = TableBuilder(TENSOR_COLUMNS, rank_0)
        self._ticks = (array("q"), array("q"), array("q"))

    def add_tensor(
        self,
        batch: Batch,
        name: str,
        nbytes: int,
        negotiation: tuple[int, int],
        start_ns: int,
        end_ns: int,
        ticks: "array[int] | None",
    ) -> None:
        """A tensor of a collective has ended.

        Args:
            batch: the collective.
            name: of the tensor.
            nbytes: -1 if that is unknown.
            negotiation: when it was submitted, and when negotiated; -1 if that is unknown.
            start_ns: when the collective began with it.
            end_ns: when it had done.
            ticks: in turn a rank and when it was ready, or later.
        """
        is_first = not batch.tensors
        batch.tensors += 1
        batch.nbytes = -1 if nbytes < 0 or batch.nbytes < 0 else batch.nbytes + nbytes
        batch.submitted_ns = max(batch.submitted_ns, negotiation[0])
        batch.negotiated_ns = max(batch.negotiated_ns, negotiation[1])
        batch.start_ns = start_ns if is_first else min(batch.start_ns, start_ns)
        batch.end_ns = max(batch.end_ns, end_ns)
        self._tensors.add(batch.seq, name, batch.kind, nbytes, *negotiation, start_ns, end_ns)
        if ticks:
            batch.has_ticks = True
            for column, values in zip(
                self._ticks, (array("q", [batch.seq]) * (len(ticks) // 2), ticks[::2], ticks[1::2]), strict=True
            ):
                column.extend(values)

    def add(self, batch: Batch) -> None:
        """A collective has ended with the last of its tensors."""
        if not batch.tensors:
            return
        self.tensors += batch.tensors
        self.tensors_with_ticks += batch.tensors if batch.has_ticks else 0
        first, last = batch.operation if batch.operation[0] >= 0 else (batch.start_ns, batch.end_ns)
        copy_ns = sum(end - begin for begin, end in batch.copies.values()) if batch.copies else 0
        self._collectives.add(
            batch.seq,
            batch.kind,
            batch.dtype,
            batch.algorithm,
            batch.nbytes,
            batch.tensors,
            batch.submitted_ns,
            batch.negotiated_ns,
            first,
            last - first,
            copy_ns,
        )

    def finish(self, first_ns: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Collectives, tensors and arrivals, in the order in which the collectives began.

        Args:
            first_ns: when the timeline begins; times count from there.
        """
        collectives, tensors = _in_order(self._collectives.finish()), _in_order(self._tensors.finish())
        del self._collectives, self._tensors
        _shift(collectives, ("submitted_ns", "negotiated_ns", "start_ns"), first_ns)
        _shift(tensors, ("submitted_ns", "negotiated_ns", "start_ns", "end_ns"), first_ns)
        callers = _callers_of(tensors)
        tensors["caller"] = pd.Categorical.from_codes(callers, categories=pd.Index(CALLER_NAMES, dtype="str"))
        collectives["caller"] = pd.Categorical.from_codes(
            common_callers(callers, tensors["seq"].to_numpy()), categories=pd.Index(CALLER_NAMES, dtype="str")
        )
        return collectives, tensors, self._arrivals(first_ns)

    def _arrivals(self, first_ns: int) -> pd.DataFrame:
        """The last tick of each rank for each collective: it was ready when the last of its tensors was."""
        seq, rank, at_ns = (
            np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64) for column in self._ticks
        )
        order = np.lexsort((at_ns, rank, seq))
        seq, rank, at_ns = seq[order], rank[order], at_ns[order]
        is_last = np.ones(len(seq), bool)
        is_last[:-1] = (seq[1:] != seq[:-1]) | (rank[1:] != rank[:-1])
        arrivals = make_table(
            ARRIVAL_COLUMNS,
            {
                "process_set": np.zeros(int(is_last.sum()), np.int32),
                "seq": seq[is_last],
                "rank": rank[is_last].astype(np.int32),
                "arrival_ns": at_ns[is_last],
            },
        )
        _shift(arrivals, ("arrival_ns",), first_ns)
        return arrivals


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    seq = table["seq"].to_numpy()
    if (seq[1:] >= seq[:-1]).all():
        return table
    return table.take(np.argsort(seq, kind="stable")).reset_index(drop=True)


def _shift(table: pd.DataFrame, columns: Sequence[str], first_ns: int) -> None:
    for column in columns:
        values = table[column].to_numpy()
        table[column] = np.where(values >= 0, values - first_ns, -1)


def _callers_of(tensors: pd.DataFrame) -> np.ndarray:
    """For each tensor the number of its caller among `CALLER_NAMES`; each name is looked at once."""
    names, kinds = tensors["name"].cat, tensors["kind"].cat
    parameters = parameters_of(names.categories)
    pairs, which = np.unique(
        names.codes.to_numpy().astype(np.int64) * len(kinds.categories) + kinds.codes.to_numpy(), return_inverse=True
    )
    callers = [
        CALLER_NAMES.index(caller_of(names.categories[name], kinds.categories[kind], parameters))
        for name, kind in zip(*np.divmod(pairs, max(len(kinds.categories), 1)), strict=True)
    ]
    return np.array(callers, np.int8)[which]


def common_callers(callers: np.ndarray, seq: np.ndarray) -> np.ndarray:
    """The caller of each collective: what those of its tensors that are known have in common.

    Args:
        callers: int8[tensors], numbers among `CALLER_NAMES`.
        seq: int64[tensors], the collectives of the tensors, in order.
    """
    if not len(seq):
        return np.zeros(0, np.int8)
    firsts = np.flatnonzero(np.diff(seq, prepend=seq[0] - 1))
    unknown, mixed = CALLER_NAMES.index(""), CALLER_NAMES.index(MIXED)
    lowest = np.minimum.reduceat(np.where(callers == unknown, mixed, callers), firsts)
    highest = np.maximum.reduceat(callers, firsts)
    return np.where(highest == unknown, unknown, np.where(lowest == highest, highest, mixed))


def cycles_table(begun_ns: "array[int]", first_ns: int) -> pd.DataFrame:
    """How long each cycle took, at its end."""
    at_ns = np.sort(np.array(begun_ns, np.int64))
    count = max(len(at_ns) - 1, 0)
    return make_table(
        COUNTER_COLUMNS,
        {
            "rank": np.zeros(count, np.int32),
            "name": pd.Categorical.from_codes(
                np.zeros(count, np.int8), categories=pd.Index([CYCLE_COUNTER], dtype="str")
            ),
            "ts_ns": at_ns[1:] - first_ns,
            "value": np.diff(at_ns) / 1e6,
        },
    )
