"""What the PyTorch profiler saw of torch's allocators (`profile_memory=True`), as counters with the names of our own."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from ..model.columns import assemble
from ..model.trace import COUNTER_COLUMNS
from ..scanning import Events

#: The events' name, and the args that are needed of them.
_EVENT: Final = "[memory]"
_TYPE: Final = "Device Type"
_DEVICE: Final = "Device Id"
_VALUES: Final = {"allocated bytes": "Total Allocated", "reserved bytes": "Total Reserved"}
KEYS: Final = (_TYPE, _DEVICE, *_VALUES.values())
#: Of `Device Type`: the processor; all others are devices.
_PROCESSOR: Final = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What a file tells of allocations, in order of their times: int64 each."""

    start: np.ndarray
    args: dict[str, np.ndarray]
    """By the names in `KEYS`; -1 without."""


def find_memory(events: Events) -> Memory | None:
    """The allocations among all events of a file; None where there are none.

    The args are then taken out of `events`: nothing else needs them.
    """
    names = events.texts["name"]
    found = None
    if _EVENT in names:
        rows = np.flatnonzero(events.name == names.index(_EVENT))
        rows = rows[np.argsort(events.start[rows], kind="stable")]
        found = Memory(events.start[rows], {key: events.keys[key].numbers_of(rows, -1) for key in KEYS})
    for key in KEYS:
        del events.keys[key]
    return found


def make_counters(files: Iterable[tuple[int, Memory | None, int]]) -> pd.DataFrame:
    """What is allocated and reserved after every allocation, by device.

    Args:
        files: of each its rank, its allocations, and what to add to its times, ns.
    """
    parts: list[dict[str, Any]] = []
    for rank, memory, shift_ns in files:
        if memory is None:
            continue
        kind, device = memory.args[_TYPE], memory.args[_DEVICE]
        of_devices = kind != _PROCESSOR
        several = len(np.unique(device[of_devices])) > 1
        for which in np.unique(np.where(of_devices, device, -2)).tolist():
            mine = of_devices & (device == which) if which != -2 else ~of_devices  # noqa: PLR2004
            place = "host " if which == -2 else f"device {which} " if several else ""  # noqa: PLR2004
            parts += _of_device(rank, memory, mine, f"{place}torch", shift_ns)
    return assemble(COUNTER_COLUMNS, parts)


def _of_device(rank: int, memory: Memory, mine: np.ndarray, name: str, shift_ns: int) -> list[dict[str, Any]]:
    parts = []
    for words, key in _VALUES.items():
        values = memory.args[key][mine]
        known = values >= 0
        if not values.max(initial=0):  # nothing is reserved on processors, and old profilers told no sums
            continue
        count = int(known.sum())
        parts.append(
            {
                "rank": np.full(count, rank, np.int32),
                "name": (np.zeros(count, np.int32), [f"{name} {words}"]),
                # A profile may begin with an allocation, just before its first span.
                "ts_ns": np.maximum(memory.start[mine][known] + shift_ns, 0),
                "value": values[known].astype(np.float64),
            }
        )
    return parts
