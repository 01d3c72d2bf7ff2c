"""What the rules look at: one object that holds the measured facts of a run, ready to reason with."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...timeline.trace import Trace
from .breakdown import EXPOSED, IDLE, Breakdown
from .cpu_time import CpuTime
from .steps import Steps

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Row = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A run, measured.

    The model of a synchronous step that gains are predicted with: it lasts as long as the own work of the slowest rank,
    plus a tail in which even that rank waits for communication.
    """

    trace: Trace
    steps: Steps
    breakdown: Breakdown
    collectives: pd.DataFrame
    """With wait and transfer (bandwidth.split_collectives), all steps."""
    cpu: CpuTime
    contention_ns: Matrix
    """How much longer backward takes because communication has its cores (contention.py): float[rank, step]."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Recording ranks, in the order of the rows."""
        return self.breakdown.ranks

    @property
    def mean_step_ns(self) -> float:
        """Mean over steps of the slowest rank's step."""
        return float(self.breakdown.step_ns.max(axis=0).mean())

    def part(self, name: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """A part of the breakdown: int64[rank, step]."""
        return self.breakdown.parts_ns[name]

    @property
    def critical_row(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """For each step the row of the rank whose own work takes longest."""
        rows: np.ndarray[tuple[int], np.dtype[np.int64]] = np.argmax(self.breakdown.own_work_ns, axis=0)
        return rows

    @property
    def is_tied_by_messages(self) -> bool:
        """Whether ranks mostly wait for each other outside collectives, as the stages of a pipeline do.

        Nobody knows then who waits for whom, and less work on one rank need not make a step shorter.
        """
        if self.trace.meta.runtime != "torch" or self.breakdown.on_device or len(self.ranks) < 2:  # noqa: PLR2004  nobody to wait for
            return False
        waiting_ns = sum(int(self.part(name).sum()) for name in EXPOSED)
        return 2 * int(self.part(IDLE).sum()) > waiting_ns

    def on_critical_rank(self, name: str) -> Row:
        """A part of the breakdown on the critical rank of each step (ns)."""
        part = self.part(name)
        picked: Row = part[self.critical_row, np.arange(part.shape[1])].astype(float)
        return picked

    def saved_ns(self, changed_work_ns: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Row:
        """How much shorter each step would be if the ranks' own work were `changed_work_ns`."""
        saved: Row = (self.breakdown.own_work_ns.max(axis=0) - changed_work_ns.max(axis=0)).astype(float)
        return saved

    def in_steps(self, table: pd.DataFrame) -> pd.DataFrame:
        """Rows whose `start_ns` falls into an analysed step of their rank."""
        keep = np.zeros(len(table), dtype=bool)
        rank, start = table["rank"].to_numpy(), table["start_ns"].to_numpy()
        for row, number in enumerate(self.ranks):
            mine = np.flatnonzero(rank == number)
            position = np.searchsorted(self.steps.start_ns[row], start[mine], side="right") - 1
            inside = position >= 0
            inside[inside] = start[mine][inside] < self.steps.end_ns[row][position[inside]]
            keep[mine[inside]] = True
        return table[keep]
