"""What the timeline says of a training that waits for its operations."""

from collections.abc import Sequence
from typing import Any

from ...timeline.record import recorder
from ...timeline.record.shard_format import describe_calls
from .work import Handle


def describe(waiting: Sequence[Handle]) -> dict[str, Any] | None:
    """Args of a wait: the tensor that is waited for, if it is one, and who called."""
    entries = waiting[0].entries
    if not recorder.is_timeline_on() or not entries:
        return None
    call = waiting[0].call
    args = {} if call is None else describe_calls((call,))
    if len(waiting) == len(entries) == 1:
        args["name"] = entries[0].request.name
    return args


def describe_executed(waited: Sequence[Handle]) -> dict[str, Any] | None:
    """Args of a wait that is over: the last of the collectives that were waited for."""
    if not recorder.is_timeline_on():
        return None
    last = max(waited, key=lambda handle: handle.seq)
    if last.seq < 0 or not last.entries:
        return None
    return {"seq": last.seq, "process_set": last.entries[0].request.process_set}
