"""Ranges of our runtime in an export of Nsight Systems: what each name means."""

import re
from typing import Final

from ..vocabulary import (
    BACKWARD,
    CHECKPOINT,
    COLLATE,
    COLLECTIVE_KINDS,
    DATA_FETCH,
    DATA_WAIT,
    DATASET,
    EPOCH_START,
    FORWARD,
    H2D_COPY,
    MEMCPY_IN,
    MEMCPY_OUT,
    OPTIMIZER_STEP,
    SYNCHRONIZE,
    WORKER_START,
    Category,
    LaneKind,
)

#: Ranges that say what the host was about, in traces of our runtime.
PHASES: Final = {FORWARD: Category.FORWARD, BACKWARD: Category.BACKWARD, OPTIMIZER_STEP: Category.OPTIMIZER}


#: All ranges of the training thread, and of a data loader in it.
_OURS: Final = {
    **{name: (LaneKind.COMPUTE, category) for name, category in PHASES.items()},
    CHECKPOINT: (LaneKind.COMPUTE, Category.CHECKPOINT),
    H2D_COPY: (LaneKind.COMPUTE, Category.H2D),
    SYNCHRONIZE: (LaneKind.COMPUTE, Category.OTHER),
    **dict.fromkeys(
        (DATA_WAIT, WORKER_START, EPOCH_START, DATA_FETCH, DATASET, COLLATE), (LaneKind.DATA, Category.DATA)
    ),
}
CAPITALS: Final = frozenset(name.upper() for name in COLLECTIVE_KINDS)
_OPERATION: Final = re.compile(r"(?:SHM|GLOO|MPI|NCCL)_[A-Z]+$")


def range_of_ours(name: str) -> tuple[LaneKind, Category]:
    """Where a range of our runtime belongs where no device takes the training thread's place.

    Ranges of others are shown and not counted.
    """
    if name in CAPITALS:
        return LaneKind.COMMUNICATION, Category.COLLECTIVE
    if name in {MEMCPY_IN, MEMCPY_OUT}:
        return LaneKind.COMMUNICATION, Category.FUSION
    if _OPERATION.match(name):
        return LaneKind.COMMUNICATION, Category.COLLECTIVE
    return _OURS.get(name, (LaneKind.OTHER, Category.OTHER))
