"""The steps of a run: taken from the trace, or inferred from tensors that come back.

Knows which steps to leave out: the first, which pays for everything that happens once, what follows it while it is still
clearly slower than the rest, and what comes before a function that is compiled when it is called first.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import STEP_COLUMNS, Trace, make_table
from ...timeline.vocabulary import COMPILATION
from .arrays import Floats, Integers, IntMatrix, Mask

#: A leading step this much longer than the median still belongs to the warm-up.
WARM_UP_RATIO: Final = 1.5
#: At most this share of the steps is taken for warm-up.
WARM_UP_SHARE: Final = 0.2
#: With fewer steps than this nothing can be left out.
FEW_STEPS: Final = 3
#: A tensor that comes back this often is part of the training loop.
MIN_OCCURRENCES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The steps to analyse: those that every recording rank has, without the warm-up."""

    ranks: tuple[int, ...]
    numbers: Integers
    start_ns: IntMatrix
    """[rank, step]"""
    end_ns: IntMatrix
    excluded: int
    inferred: bool

    @property
    def duration_ns(self) -> IntMatrix:
        """[rank, step]."""
        return self.end_ns - self.start_ns

    @property
    def pause_ns(self) -> Integers:
        """Time in front of each step that belongs to no step (where only some steps were recorded, or left out): int64[S]."""
        pause = np.zeros(self.count, dtype=np.int64)
        if self.count > 1:
            apart = self.start_ns[:, 1:].min(axis=0) > self.end_ns[:, :-1].max(axis=0)
            between = self.start_ns[:, 1:].max(axis=0) - self.end_ns[:, :-1].max(axis=0)
            pause[1:] = np.where(apart & (np.diff(self.numbers) > 1), between, 0)
        return pause

    @property
    def job_ns(self) -> Integers:
        """Duration of each step of the job: from the end of the step before on the last rank to its own end there: int64[S]."""
        durations: Integers = self.job_durations(self.end_ns)
        return durations

    def job_durations(self, ends: np.ndarray) -> np.ndarray:
        """Durations of the job's steps if the ranks' steps ended at `ends`: [..., rank, step] to [..., step]."""
        last = ends.max(axis=-2)
        begin = np.full((*last.shape[:-1], 1), self.start_ns[:, 0].max()) if self.count else last[..., :0]
        durations: np.ndarray = np.diff(last, axis=-1, prepend=begin) - self.pause_ns
        return durations

    @property
    def count(self) -> int:
        """How many steps are analysed."""
        return len(self.numbers)


def infer_steps(trace: Trace) -> pd.DataFrame:
    """Steps of a trace that does not mark them: one round of the tensors that come back regularly.

    The k-th step begins when the first of these tensors is asked for the k-th time.  The last round has no end, so it is
    not a step.

    Returns:
        A table with STEP_COLUMNS; empty if nothing comes back.
    """
    tensors = trace.tensors
    asked = tensors["submitted_ns"].where(tensors["submitted_ns"] >= 0, tensors["start_ns"])
    rows = tensors.assign(asked_ns=asked)[tensors["kind"] != "broadcast"]
    parts = []
    for rank, of_rank in rows.groupby("rank", observed=True):
        counts = of_rank["name"].value_counts()
        counts = counts[counts >= MIN_OCCURRENCES]
        if counts.empty:
            continue
        # The loop's tensors have the commonest count, weighted by the time they cover; others come with validation.
        commonest = counts.groupby(counts).size()
        occurrences = commonest.index.to_numpy(dtype=np.int64)
        rounds = int(occurrences[np.argmax(commonest.to_numpy() * occurrences)])
        members = counts[counts == rounds].index
        of_loop = of_rank[of_rank["name"].isin(members)].sort_values("asked_ns", kind="stable")
        occurrence = of_loop.groupby("name", observed=True).cumcount()
        starts = of_loop["asked_ns"].groupby(occurrence.to_numpy()).min().sort_index().to_numpy()
        parts.append((rank, starts))
    data: dict[str, object] = {
        "rank": np.concatenate([np.full(len(s) - 1, rank) for rank, s in parts]) if parts else [],
        "step": np.concatenate([np.arange(len(s) - 1) for _, s in parts]) if parts else [],
        "start_ns": np.concatenate([s[:-1] for _, s in parts]) if parts else [],
        "end_ns": np.concatenate([s[1:] for _, s in parts]) if parts else [],
    }
    return make_table(STEP_COLUMNS, data)


def find_steps(trace: Trace, *, warm_up: int | None = None, selected: tuple[int, int] | None = None) -> Steps:
    """Choose the steps to analyse.

    Args:
        warm_up: how many leading steps to leave out; None to find out.
        selected: first step and the one after the last, by number; None for all.
    """
    inferred = trace.steps.empty
    table = infer_steps(trace) if inferred else trace.steps
    if selected is not None:
        table = table[(table["step"] >= selected[0]) & (table["step"] < selected[1])]
    table = table.drop_duplicates(["rank", "step"])
    ranks = tuple(int(rank) for rank in sorted(table["rank"].unique()))
    starts = table.pivot(index="rank", columns="step", values="start_ns").dropna(axis="columns")
    ends = table.pivot(index="rank", columns="step", values="end_ns").dropna(axis="columns")
    start_ns, end_ns = starts.to_numpy(dtype=np.int64), ends.to_numpy(dtype=np.int64)
    numbers = np.array(starts.columns, dtype=np.int64)
    skipped = 0
    if ranks and not _began_before(trace, numbers):
        skipped = _warm_up(np.median(end_ns - start_ns, axis=0), _compile(trace, ranks, start_ns, end_ns))
    if warm_up is not None:
        skipped = min(warm_up, len(numbers))
    return Steps(
        ranks=ranks,
        numbers=numbers[skipped:],
        start_ns=start_ns[:, skipped:],
        end_ns=end_ns[:, skipped:],
        excluded=skipped,
        inferred=inferred,
    )


def _began_before(trace: Trace, numbers: np.ndarray) -> bool:
    """Whether the first steps of the run are known to be others: of those only sums are left."""
    before = trace.sums["step"].to_numpy()
    return bool(len(before) and len(numbers) and trace.meta.knows_order and before.min() < numbers[0])


def _compile(trace: Trace, ranks: tuple[int, ...], start_ns: IntMatrix, end_ns: IntMatrix) -> Mask:
    """In which steps some rank compiles a function: bool[step]."""
    found = np.zeros(start_ns.shape[1], dtype=bool)
    spans = trace.spans[trace.spans["name"] == COMPILATION]
    for row, rank in enumerate(ranks if len(spans) else ()):
        ended = (spans["start_ns"] + spans["dur_ns"])[spans["rank"] == rank].to_numpy()
        column = np.searchsorted(end_ns[row], ended)
        inside = column < len(found)
        inside[inside] = start_ns[row][column[inside]] < ended[inside]
        found[column[inside]] = True
    return found


def _warm_up(durations: Floats, compile_: Mask) -> int:
    """How many leading steps are warm-up.

    Args:
        durations: of each step, ns.
        compile_: in which of them a function is compiled, which a training calls for the first time there, or later.
    """
    if len(durations) < FEW_STEPS:
        return 0
    usual = float(np.median(durations))
    most = max(1, int(len(durations) * WARM_UP_SHARE))
    is_slow = durations[:most] > WARM_UP_RATIO * usual
    skipped = 1
    while skipped < most and is_slow[skipped]:
        skipped += 1
    first_calls = np.flatnonzero(is_slow & compile_[:most])
    return max(skipped, int(first_calls[-1]) + 1) if len(first_calls) else skipped
