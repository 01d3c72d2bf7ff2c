"""What the training threads of a loaded machine did of their own, and what they waited for cores beside that."""

from typing import Final

import numpy as np

from .arrays import Matrix
from .breakdown import Breakdown
from .cpu_time import CpuTime

#: A rank lacks cores from this share of its phases on.
MIN_STARVED_RATIO: Final = 0.05
#: All ranks do if the one that waits least for cores waits so much of what the one does that waits longest.
ALSO_STARVED: Final = 0.2


def are_all_starved(cpu: CpuTime, breakdown: Breakdown) -> bool:
    """Whether no rank is spared: what one rank alone lacks, something on its core has."""
    parts = cpu.starved_parts if cpu.is_estimated else cpu.metered
    if breakdown.on_device or not cpu.knows_starved or not parts:
        return False
    starved = np.sum([cpu.starved_ns[part] for part in parts], axis=0).sum(axis=1)
    took = np.sum([breakdown.parts_ns[part] for part in parts], axis=0).sum(axis=1)
    if not starved.size or not took.all():
        return False
    ratio = starved / took
    return bool(ratio.min() >= max(MIN_STARVED_RATIO, ALSO_STARVED * ratio.max()))


def without_starvation(cpu: CpuTime, part: str, took_ns: Matrix) -> Matrix:
    """What a rank ran and was blocked for within a part: float[rank, step]; all of it where no counters tell.

    Counters stand at the end of a phase, and may hold what belongs to a wait beside it: never less than what was run.
    """
    if cpu.is_estimated and part in cpu.starved_parts:
        return np.maximum(took_ns - cpu.starved_ns[part], 0)
    if part not in cpu.metered:
        return took_ns
    ran = np.minimum(cpu.running_ns[part], took_ns)
    worked: Matrix = np.clip(took_ns - cpu.starved_ns[part], ran, took_ns)
    return worked
