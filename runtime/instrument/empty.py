"""Says so, at the end, when a timeline was asked for and shows no training."""

import logging
import re
from typing import Final

from ...timeline.record import recorder
from ...timeline.record.shard_writer import ShardWriter
from ...timeline.vocabulary import GARBAGE_COLLECTION
from ..core.framework import used_framework
from .steps import tracker

_log = logging.getLogger("tlkit.instrument")

#: As much of a file as is looked at for anything that happened.
_LOOKED_AT_NBYTES: Final = 1 << 20
_WITHOUT_STEPS: Final = (
    "no optimizer of torch has stepped on the thread that began to record (an evaluation, another thread, or an optimizer that "
    "is no torch.optim.Optimizer)"
)
_WITHOUT_STEPS_OF_OTHERS: Final = (
    "no update was seen on the thread that began to record (an evaluation, another thread, or a training that neither uses "
    "DistributedOptimizer or DistributedGradientTape nor an optimizer of Keras)"
)
_PAUSE: Final = GARBAGE_COLLECTION.encode()
_SPAN: Final = re.compile(rb'"ph": ?"[XBb]"')


def install() -> None:
    """Look at every timeline that is closed."""
    recorder.at_stop.append(_say)


def uninstall() -> None:
    """Look at none any more."""
    if _say in recorder.at_stop:
        recorder.at_stop.remove(_say)


def _say(writer: ShardWriter) -> None:
    """One line for all ranks: what is missing, and why."""
    steps = tracker.steps_of(writer)
    if writer.header.rank or steps:
        return
    if steps is not None:
        why = _WITHOUT_STEPS if used_framework()[0] == "torch" else _WITHOUT_STEPS_OF_OTHERS
        _log.warning("the timeline %s has no training step: %s", writer.path, why)
    elif not _holds_anything(writer):
        _log.warning(
            "the timeline %s is empty: the thread that began to record has loaded no data, called no module and stepped no "
            "optimizer; call hvd.init() or tlkit.instrument() in the processes, and on the thread, that train",
            writer.path,
        )


def _holds_anything(writer: ShardWriter) -> bool:
    """Whether there is a span at all: a program that only communicates has not gone wrong."""
    try:
        with writer.path.open("rb") as file:
            lines = file.read(_LOOKED_AT_NBYTES).splitlines()
        return any(_SPAN.search(line) and _PAUSE not in line for line in lines)
    except OSError:
        return True
