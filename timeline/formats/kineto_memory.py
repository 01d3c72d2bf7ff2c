"""What the PyTorch profiler saw of torch's allocators (`profile_memory=True`), as counters with the names of our own."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ..model.columns import assemble
from ..model.trace import COUNTER_COLUMNS
from .kineto_tables import RankEvents

#: The events' name, and the args that are needed of them.
_EVENT: Final = "[memory]"
_TYPE: Final = "Device Type"
_DEVICE: Final = "Device Id"
_VALUES: Final = {"allocated bytes": "Total Allocated", "reserved bytes": "Total Reserved"}
KEYS: Final = (_TYPE, _DEVICE, *_VALUES.values())
#: Of `Device Type`: the processor; all others are devices.
_PROCESSOR: Final = 0


def make_counters(ranks: Sequence[RankEvents], origin_ns: int) -> pd.DataFrame:
    """What is allocated and reserved after every allocation, by device."""
    parts: list[dict[str, Any]] = []
    for item in ranks:
        names = item.events.texts["name"]
        if _EVENT not in names:
            continue
        rows = np.flatnonzero(item.events.name == names.index(_EVENT))
        rows = rows[np.argsort(item.events.start[rows], kind="stable")]
        kind, device = (item.events.dense(key)[rows] for key in (_TYPE, _DEVICE))
        of_devices = kind != _PROCESSOR
        several = len(np.unique(device[of_devices])) > 1
        for which in np.unique(np.where(of_devices, device, -2)).tolist():
            mine = rows[of_devices & (device == which)] if which != -2 else rows[~of_devices]  # noqa: PLR2004
            place = "host " if which == -2 else f"device {which} " if several else ""  # noqa: PLR2004
            parts += _of_device(item, mine, f"{place}torch", item.base_ns - origin_ns)
    return assemble(COUNTER_COLUMNS, parts)


def _of_device(item: RankEvents, rows: np.ndarray, name: str, shift_ns: int) -> list[dict[str, Any]]:
    parts = []
    for words, key in _VALUES.items():
        values = item.events.dense(key)[rows]
        known = values >= 0
        if not values.max(initial=0):  # nothing is reserved on processors, and old profilers told no sums
            continue
        count = int(known.sum())
        parts.append(
            {
                "rank": np.full(count, item.rank, np.int32),
                "name": (np.zeros(count, np.int32), [f"{name} {words}"]),
                # A profile may begin with an allocation, just before its first span.
                "ts_ns": np.maximum(item.events.start[rows[known]] + shift_ns, 0),
                "value": values[known].astype(np.float64),
            }
        )
    return parts
