"""What the training threads got of their processors, from counters that the runtime records beside the phases of a step.

Time in a phase is time on a core, time ready to run without a core (*starved*: somebody else had it), or time blocked (asleep, or
waiting for a disk, a lock, another thread).  Which of them is longer than elsewhere says why a phase is slow.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...timeline.model.trace import Trace
from ...timeline.vocabulary import CPU_COUNTERS, INPUT_COUNTER, PROCESS_CPU_COUNTER, STARVED_COUNTERS, Category
from .arrays import IntMatrix
from .steps import Steps

METERED: Final = (Category.DATA, Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.OTHER)


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTime:
    """By phase, for each rank and analysed step: int64[rank, step], ns."""

    running_ns: dict[str, IntMatrix]
    starved_ns: dict[str, IntMatrix]
    input_elements: IntMatrix
    """Elements that the model was given."""
    process_ns: IntMatrix
    """What all threads of the process have run; 0 where it was not recorded."""
    metered: frozenset[str]
    """Parts whose running time was recorded on all ranks."""
    is_known: bool
    """Whether running times were recorded on all ranks."""
    knows_starved: bool


def read_cpu_time(trace: Trace, steps: Steps) -> CpuTime:
    """Add up the counters of each step; zeros where there are none."""
    shape = steps.start_ns.shape
    running = {str(category): np.zeros(shape, dtype=np.int64) for category in METERED}
    starved = {str(category): np.zeros(shape, dtype=np.int64) for category in METERED}
    elements = np.zeros(shape, dtype=np.int64)
    wanted = {CPU_COUNTERS[category]: running[str(category)] for category in METERED}
    wanted |= {STARVED_COUNTERS[category]: starved[str(category)] for category in METERED}
    wanted[INPUT_COUNTER] = elements
    process = np.zeros(shape, dtype=np.int64)
    wanted[PROCESS_CPU_COUNTER] = process
    counters = trace.counters
    seen: dict[str, set[int]] = {}
    if len(counters) and steps.count:
        counters = counters[counters["name"].isin(list(wanted))]
        row_of = {rank: row for row, rank in enumerate(steps.ranks)}
        for (rank, name), table in counters.groupby(["rank", "name"], observed=True):
            row = row_of.get(int(str(rank)))
            if row is None:
                continue
            seen.setdefault(str(name), set()).add(row)
            times, values = table["ts_ns"].to_numpy(), table["value"].to_numpy()
            order = np.argsort(times, kind="stable")
            total = np.concatenate(([0.0], np.cumsum(values[order])))
            # A value stands at the end of its phase; the step's own end belongs to the step.
            first = np.searchsorted(times[order], steps.start_ns[row], side="right")
            last = np.searchsorted(times[order], steps.end_ns[row], side="right")
            wanted[str(name)][row] = total[last] - total[first]
    everybody = len(steps.ranks)

    def known(name: str) -> bool:
        return everybody > 0 and len(seen.get(name, ())) == everybody

    return CpuTime(
        running_ns=running,
        starved_ns=starved,
        input_elements=elements,
        process_ns=process,
        metered=frozenset(str(category) for category in METERED if known(CPU_COUNTERS[category])),
        is_known=known(CPU_COUNTERS[Category.FORWARD]),
        knows_starved=known(STARVED_COUNTERS[Category.FORWARD]),
    )
