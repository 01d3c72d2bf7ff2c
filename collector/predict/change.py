"""A change of a run, as factors: what takes how many times as long, and what happens no more.

Changes are values: `both = one & other` is the change that makes both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..model.arrays import Floats
from ..model.graph import Graph

#: A number for everything, or float[rank, step].
ByStep = float | np.ndarray
#: A number for everything, or float[operation].
ByOperation = float | np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Factors of durations; 1 leaves things as they are.  Without arguments nothing changes."""

    work: Mapping[str, ByStep] = field(default_factory=dict)
    """By part of the breakdown: the ranks' own time in it."""
    contention: ByStep | None = None
    """The part of backward that waits for cores which communication has."""
    latency: ByOperation = 1.0
    """What an operation costs however few bytes it carries."""
    transfer: ByOperation = 1.0
    """What its bytes cost, copies included."""
    negotiation: ByOperation = 1.0
    """From the last member's request to the start."""
    gone: np.ndarray | None = None
    """Operations that are called no more: bool[operation]."""
    waking: ByStep = 1.0
    """How much later than what it waits for a wait for an operation ends: one number, or float[rank, 1]."""
    loading: ByStep = 1.0
    """What a worker of the loader spends on a batch: one number, or float[rank, step] by the step that waits for it."""

    def __and__(self, other: "Change") -> "Change":
        """Both changes."""
        work = {
            part: np.multiply(self.work.get(part, 1.0), other.work.get(part, 1.0))
            for part in (*self.work, *(part for part in other.work if part not in self.work))
        }
        gone = self.gone if other.gone is None else other.gone if self.gone is None else self.gone | other.gone
        contention = self.contention
        if other.contention is not None:
            contention = other.contention if contention is None else np.multiply(contention, other.contention)
        return Change(
            work=work,
            contention=contention,
            latency=np.multiply(self.latency, other.latency),
            transfer=np.multiply(self.transfer, other.transfer),
            negotiation=np.multiply(self.negotiation, other.negotiation),
            gone=gone,
            waking=np.multiply(self.waking, other.waking),
            loading=np.multiply(self.loading, other.loading),
        )

    def gone_of(self, count: int) -> np.ndarray:
        """bool[operation]."""
        return np.zeros(count, dtype=bool) if self.gone is None else self.gone

    def contention_of(self, graph: Graph) -> np.ndarray:
        """float[rank, step]."""
        value = 1.0 if self.contention is None else self.contention
        return np.broadcast_to(value, graph.steps.start_ns.shape)

    def loading_of(self, graph: Graph) -> Floats:
        """Factor of each batch."""
        loading = graph.loading
        if np.ndim(self.loading) == 0:
            return np.full(len(loading), float(np.asarray(self.loading)))
        factors = np.broadcast_to(self.loading, graph.steps.start_ns.shape)
        step = np.zeros(len(loading), dtype=np.int64)
        for row in range(len(graph.steps.ranks)):
            mine = loading.rank == row
            step[mine] = np.searchsorted(graph.steps.start_ns[row], loading.wait_end_ns[mine], side="right") - 1
        chosen: Floats = factors[loading.rank, np.clip(step, 0, graph.steps.count - 1)]
        return chosen


def all_of(changes: Sequence[Change]) -> Change:
    """All changes together."""
    together = Change()
    for change in changes:
        together &= change
    return together


def removed(part_ns: np.ndarray, less_ns: np.ndarray | float) -> np.ndarray:
    """The factor that takes `less_ns` out of a part, no more than there is: float[rank, step]."""
    left = np.maximum(part_ns - np.maximum(less_ns, 0.0), 0.0)
    factor: np.ndarray = np.divide(left, part_ns, out=np.ones(np.shape(left)), where=part_ns > 0)
    return factor
