"""Shards in which no step was recorded in full, as one: of a thousand, each by itself would take a thousand times as long."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ..model.columns import Times, no_rows
from ..model.trace import COLLECTIVE_COLUMNS, MESSAGE_COLUMNS, TENSOR_COLUMNS
from ..vocabulary import COLLECTIVE_KINDS
from .tlkit_counters import told_counters
from .tlkit_shard import Shard, Table
from .tlkit_sums import Sums, lay_out, with_parts

_STEPS: Final = ("step", "start_ns", "end_ns")


class SumsShards:
    """Their tables: spans that stand for the parts of steps, steps, sums, counters, and what is told of tensors."""

    def __init__(self, shards: Sequence[Shard], sums: Sums, counts: np.ndarray) -> None:
        """Make the tables.

        Args:
            shards: in order of ranks.
            sums: their steps, one shard behind the other.
            counts: steps of each, int64[shard].
        """
        self.shards = shards
        self.sums, self._shard_of_sum = sums, np.repeat(np.arange(len(shards)), counts)
        for shard in shards:
            shard.forget_order()
        # Of a step that is told without parts nothing is known but how long it was.
        told = with_parts(sums)
        self._lay_out(
            sums if told.all() else {name: values[told] for name, values in sums.items()}, self._shard_of_sum[told]
        )
        counters = [(number, *counter) for number, shard in enumerate(shards) for counter in told_counters(shard)]
        self._shard_of_counter = np.array([number for number, *_ in counters], np.int64)
        names = {name: number for number, name in enumerate(dict.fromkeys(name for _, name, *_ in counters))}
        self._counters: Table = {
            "name": (np.array([names[name] for _, name, *_ in counters], np.int32), list(names)),
            "ts_ns": np.array([at_ns for *_, at_ns, _ in counters], np.int64),
            "value": np.array([value for *_, value in counters], np.float64),
        }
        self._tensors = [(number, shard.make_tensors()) for number, shard in enumerate(shards) if shard.has_lives]

    def _lay_out(self, steps: Sums, shard_of_step: np.ndarray) -> None:
        self._spans, self._shard_of_span = lay_out(steps, shard_of_step)
        self._steps, self._shard_of_step = {name: steps[name] for name in _STEPS}, shard_of_step

    def leave_out_sums(self) -> None:
        """Elsewhere in the run there are steps in full: those of which only sums are told are no steps beside them."""
        self._lay_out({name: values[:0] for name, values in self.sums.items()}, self._shard_of_step[:0])

    @property
    def has_spans(self) -> bool:
        """Whether any span stands for something."""
        return len(self._shard_of_span) > 0

    def tables(self) -> list[tuple[str, Table, np.ndarray]]:
        """Each table: its name, its columns (times on the shards' clocks), and the number of each row's shard."""
        none = np.zeros(0, np.int64)
        return [
            ("spans", self._spans, self._shard_of_span),
            ("steps", self._steps, self._shard_of_step),
            ("sums", self.sums, self._shard_of_sum),
            ("counters", self._counters, self._shard_of_counter),
            ("tensors", no_rows(TENSOR_COLUMNS, kind=["", *COLLECTIVE_KINDS]), none),
            *(("tensors", table, np.full(len(table["seq"]), number)) for number, table in self._tensors),
            ("collectives", no_rows(COLLECTIVE_COLUMNS, kind=COLLECTIVE_KINDS), none),
            ("messages", no_rows(MESSAGE_COLUMNS), none),
        ]


def moved(times: Times, shard_of_row: np.ndarray, clocks: Sequence[Callable[[Times], Times] | None]) -> Times:
    """Times of several shards on the run's clock.

    Args:
        times: int64[row], on the shards' clocks.
        shard_of_row: int64[row], ascending.
        clocks: brings times of each shard to the run's clock; None where that is its own.
    """
    if not any(clocks):
        return times
    changed = times.copy()
    for number, clock in enumerate(clocks):
        if clock is not None:
            first, last = np.searchsorted(shard_of_row, [number, number + 1])
            changed[first:last] = clock(times[first:last])
    return changed
