"""What operations cost, from the run's own: latency, bytes over bandwidth, negotiation, copies, cores taken from backward."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..model.arrays import Floats, Matrix
from ..model.breakdown import PARTS, Breakdown
from ..model.graph import Graph
from ..model.operations import Operations

_BACKWARD: Final = PARTS.index(str(Category.BACKWARD))
#: From this size on a collective takes longer than this by its bytes, on any transport.
LARGE_NBYTES: Final = 1 << 20
LARGE_LATENCY_NS: Final = 500_000.0
#: A line through times and sizes needs some distance between the sizes.
DISTANCE: Final = 2.0
#: Sizes are taken together if they are about alike: so many groups between a size and its double.
SIZES_AN_OCTAVE: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Of each operation: float[K], ns."""

    base_ns: float
    """The latency of a collective of no bytes."""
    latency_ns: Floats
    transfer_ns: Floats
    """With `latency_ns` the duration of the operation."""
    negotiation_ns: Floats
    """Of what lies between readiness and start; the rest is waiting in the queue and copies."""
    copies_ns: Floats
    contention_ns: Matrix
    """float[rank, step]"""
    backward_ns: Matrix

    def contention_of_pieces(self, graph: Graph) -> Floats:
        """Contention spread over backward: float[N]."""
        share = np.divide(
            self.contention_ns, self.backward_ns, out=np.zeros_like(self.contention_ns), where=self.backward_ns > 0
        )
        spread: Floats = graph.piece_ns[:, _BACKWARD] * share[graph.piece_rank, graph.piece_step]
        return spread


def find_costs(graph: Graph, breakdown: Breakdown, contention_ns: Matrix) -> Costs:
    """Divide the durations of a run's operations."""
    operations = graph.operations
    took = operations.duration_ns.astype(float)
    base = _latency_ns(operations, took)
    latency = np.minimum(took, base)
    lead = np.maximum(operations.start_ns - operations.ready_ns, 0).astype(float)
    known = operations.negotiated_ns >= 0
    agreed = np.clip((operations.negotiated_ns - operations.ready_ns).astype(float), 0, lead)
    negotiation = np.where(known, agreed, 0.0)
    return Costs(
        base_ns=base,
        latency_ns=latency,
        transfer_ns=took - latency,
        negotiation_ns=negotiation,
        copies_ns=np.clip(operations.copy_ns / 2, 0, lead - negotiation),
        contention_ns=contention_ns,
        backward_ns=breakdown.parts_ns[str(Category.BACKWARD)].astype(float),
    )


def _latency_ns(operations: Operations, took: Floats) -> float:
    """Where the line through durations over bytes meets zero bytes; the quickest size's median where there is no line."""
    sized = (operations.nbytes > 0) & np.array([kind != "barrier" for kind in operations.kind], dtype=bool)
    if not sized.any():
        return 0.0  # of unknown sizes everything may be bytes
    sizes, times = operations.nbytes[sized].astype(float), took[sized]
    if sizes.max() >= DISTANCE * max(sizes.min(), 1.0):
        return fitted_latency_ns(sizes, times)
    quickest = min(float(np.median(times[sizes == size])) for size in np.unique(sizes))
    # Of a single size nobody knows the line; large ones are mostly bytes.
    return min(quickest, LARGE_LATENCY_NS) if float(np.median(sizes)) >= LARGE_NBYTES else quickest


def fitted_latency_ns(nbytes: Floats, took_ns: Floats) -> float:
    """What collectives take at their quickest, less what goes with their bytes; 0 if sizes do not tell.

    The tenth percentile of each size: a busy processor makes some collectives slow, a far network all of them.
    """
    nbytes, took = nbytes[nbytes > 0], took_ns[nbytes > 0]
    if not len(nbytes) or nbytes.max() < DISTANCE * nbytes.min():
        return 0.0  # no line through one point
    # Fused batches hardly ever have the same size twice.
    size = np.floor(SIZES_AN_OCTAVE * np.log2(nbytes))
    sizes, count = np.unique(size, return_counts=True)
    quick = np.array([np.quantile(took[size == one], 0.1) for one in sizes])
    mean = np.array([nbytes[size == one].mean() for one in sizes])
    slope, intercept = np.polyfit(mean, quick, 1, w=np.sqrt(count))
    return float(np.clip(intercept if slope > 0 else quick.min(), 0.0, quick.min()))
