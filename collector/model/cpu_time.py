"""What the training threads got of their processors, from counters that the runtime records beside the phases of a step.

Time in a phase is time on a core, time ready to run without a core (*starved*: somebody else had it), or time blocked (asleep, or
waiting for a disk, a lock, another thread).  Which of them is longer than elsewhere says why a phase is slow.
"""

from dataclasses import dataclass

import numpy as np

from ...timeline.model.step_loads import METERED
from ...timeline.model.trace import Trace
from ...timeline.vocabulary import CPU_COUNTERS, INPUT_COUNTER, PROCESS_CPU_COUNTER, STARVED_COUNTERS, Category
from .arrays import IntMatrix
from .steps import Steps


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
    starved_parts: frozenset[str] = frozenset()
    """Parts of which it is known on all ranks how long they waited for cores."""

    @property
    def is_estimated(self) -> bool:
        """Whether waits for cores were told by operators (lost_cores), not counted."""
        return self.knows_starved and not self.is_known


def read_cpu_time(trace: Trace, steps: Steps) -> CpuTime:
    """Add up the counters of each step; zeros where there are none."""
    if not trace.meta.knows_order:
        return _of_sums(trace, steps)
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
        starved_parts=frozenset(str(category) for category in METERED if known(STARVED_COUNTERS[category])),
    )


def _of_sums(trace: Trace, steps: Steps) -> CpuTime:
    """The same of steps of which only sums were recorded."""
    sums = trace.sums
    rank, number = sums["rank"].to_numpy(), sums["step"].to_numpy()
    row = np.searchsorted(np.array(steps.ranks), rank)
    column = np.searchsorted(steps.numbers, number)
    wanted = np.isin(rank, steps.ranks) & np.isin(number, steps.numbers)
    row, column = row[wanted], column[wanted]

    def matrix(name: str) -> IntMatrix:
        found = np.full(steps.start_ns.shape, -1, dtype=np.int64)
        found[row, column] = sums[name].to_numpy()[wanted]
        return found

    ran = {str(part): matrix(f"{part}_ran_ns") for part in METERED}
    starved = {str(part): matrix(f"{part}_starved_ns") for part in METERED}
    process = matrix("process_ran_ns")
    # What is told of the same step is told of all its parts.
    is_known, knows_starved = (
        bool(steps.count) and bool((told[str(Category.FORWARD)] >= 0).all()) for told in (ran, starved)
    )
    return CpuTime(
        running_ns={part: np.maximum(values, 0) for part, values in ran.items()},
        starved_ns={part: np.maximum(values, 0) for part, values in starved.items()},
        input_elements=np.zeros(steps.start_ns.shape, dtype=np.int64),
        process_ns=np.maximum(process, 0),
        metered=frozenset(map(str, METERED)) if is_known else frozenset(),
        is_known=is_known,
        knows_starved=knows_starved,
        starved_parts=frozenset(map(str, METERED)) if knows_starved else frozenset(),
    )
