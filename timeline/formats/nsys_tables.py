"""Tables out of what exports of Nsight Systems hold: which process is which rank, its spans, its collectives."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ..model.columns import TableBuilder
from ..model.trace import COLLECTIVE_COLUMNS, LAUNCH_COLUMNS
from ..vocabulary import LaneKind
from .nsys_database import Call, Export, Spans

_RANK_IN_NAME: Final = re.compile(r"(?:rank[-_.]?|rep\.)(\d+)", re.IGNORECASE)


def ranks_of(exports: Sequence[Export]) -> dict[tuple[int, int], int]:
    """A rank for every process that did something, by export and globalPid."""
    ranks: dict[tuple[int, int], int] = {}
    for export in exports:
        doing = [spans for spans in export.spans if set(spans.kinds) - {LaneKind.HOST}] or export.spans
        pids = sorted({int(pid) for spans in doing for pid in np.unique(spans.process)})
        # Loader workers push ranges, too; who steps is a rank.
        stepping = {pid for pid, *_ in export.steps} | set(export.device_of)
        pids = [pid for pid in pids if pid in stepping] or pids
        pids = [pid for _, pid in sorted((export.device_of.get(pid, 1 << 30), pid) for pid in pids)]
        in_name = _RANK_IN_NAME.search(export.source.path.name)
        first = int(in_name[1]) if in_name and len(pids) == 1 else len(ranks)
        for number, pid in enumerate(pids):
            ranks[id(export), pid] = first + number
    return ranks


def columns_of(spans: Spans, export: Export, ranks: dict[tuple[int, int], int], moved: int) -> dict[str, Any]:
    """Spans as columns; those of processes that are no ranks are left out."""
    rank = np.array([ranks.get((id(export), pid), -1) for pid in spans.process.tolist()], np.int32)
    kept = np.flatnonzero(rank >= 0)

    def encoded(values: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        numbers: dict[str, int] = {}
        codes = np.array([numbers.setdefault(str(values[row]), len(numbers)) for row in kept.tolist()], np.int32)
        return codes, list(numbers)

    return {
        "rank": rank[kept],
        "lane": encoded(spans.lanes),
        "lane_kind": encoded(spans.kinds),
        "category": encoded(spans.categories),
        "name": encoded(spans.names),
        "start_ns": spans.start[kept] + moved,
        "dur_ns": (spans.end - spans.start)[kept],
        "args_row": np.full(len(kept), -1, np.int64),
    }


def make_launches(
    exports: Sequence[Export], ranks: dict[tuple[int, int], int], shift_ns: dict[int, int]
) -> pd.DataFrame:
    """How each activity of a device was launched, by rank and time; nothing where no call is known."""
    rows = []
    for export in exports:
        moved = shift_ns[id(export)]
        for pid, start, call, correlation in export.launched:
            rank = ranks.get((id(export), pid), -1)
            if rank >= 0 and export.launches:
                known = call or Call(-1 - moved, 0, "")
                rows.append((rank, start + moved, known.lane, known.start + moved, known.duration, correlation))
    builder = TableBuilder(LAUNCH_COLUMNS)
    for row in sorted(rows):
        builder.add(*row)
    return builder.finish()


def make_collectives(rows: list[tuple[int, str, int, int, int, int]]) -> pd.DataFrame:
    """The table of (rank, kind, launched, start, duration, bytes), numbered in the order of each rank."""
    builder = TableBuilder(COLLECTIVE_COLUMNS)
    seq: Counter[int] = Counter()
    for rank, kind, launched, start, duration, nbytes in sorted(rows, key=lambda row: (row[0], row[3])):
        builder.add(
            rank,
            0,
            seq[rank],
            kind,
            "",
            "",
            "nccl" if launched >= 0 else "",
            nbytes,
            1,
            launched,
            -1,
            start,
            duration,
            0,
            "",
            -1,
            "",
        )
        seq[rank] += 1
    return builder.finish()
