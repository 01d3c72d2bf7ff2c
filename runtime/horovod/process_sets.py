"""What scripts import from `horovod.common.process_sets`."""

from ..core.process_sets import ProcessSet, get_process_set_ids_and_ranks, global_process_set
from ..torch.basics import add_process_set, remove_process_set


def is_process_set_included(process_set: ProcessSet) -> bool:
    """Whether this process is part of a set."""
    return bool(process_set.included())


__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "is_process_set_included",
    "remove_process_set",
]
