"""Process groups that a training makes of torch.distributed: all ranks call for them, wait for each other, and are connected.

One that is made in every step costs more than what it is made for.
"""

from functools import wraps
from typing import Any, Final

from ...timeline.record import recorder
from ..core.calls import calling, current_of_torch
from .collective_spans import begin, here

#: Functions that make process groups and that all ranks call: they wait for each other, and for their connections.
GROUP_FUNCTIONS: Final = ("new_group", "new_subgroups_by_enumeration")
#: An argument of theirs by which only the group's own ranks call them.
_MEMBERS_ONLY: Final = "use_local_synchronization"


def recorded_making(original: Any) -> Any:
    """A process group that is made: a barrier of all ranks, and whatever backends do to connect them."""

    @wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if here.inside or not recorder.is_on() or kwargs.get(_MEMBERS_ONLY):
            return original(*args, **kwargs)
        with calling("group"):
            under_way = begin("barrier", (), None, "", current_of_torch("barrier", blocking=True))
        if under_way is None:
            return original(*args, **kwargs)
        with under_way.calling():
            wait = recorder.begin_wait(under_way.wait_args()) if recorder.is_training_thread() else None
            try:
                return original(*args, **kwargs)
            finally:
                recorder.end_wait(wait)
                under_way.finished()

    return make
