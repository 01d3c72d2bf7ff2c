"""A trace as nvtxt, which Nsight Systems merges into a report of its own (`ImportNvtxt --cmd merge`).

The format as it works (nsys 2022.4): declarations beginning with `@` say which fields events have; times are ns from the
beginning of the report; thread names have to be unique in the file; `NameCategory` aborts the import; quotes cannot be escaped.
"""

from collections.abc import Iterator
from typing import Final, TextIO

import numpy as np

from ..commands.arguments import clean
from ..model.trace import Trace
from ..palette import argb
from ..vocabulary import Category, LaneKind

#: Processes of the file: rank 0 is this one.
FIRST_PROCESS: Final = 100
_MAX_NAME: Final = 200
_HEAD: Final = """\
SetFileDisplayName, "timeline"
@RangePush, Time, ProcessId, ThreadId, CategoryId, Color, Message
TimeBase = Relative
@RangePop, Time, ProcessId, ThreadId
TimeBase = Relative
@NameProcess, ProcessId, Name
@NameOsThread, ProcessId, ThreadId, Name
"""


def _quoted(name: str) -> str:
    return '"' + clean(name)[:_MAX_NAME].replace('"', "'").replace("\\", "/") + '"'


def write_nvtxt(trace: Trace, file: TextIO) -> None:
    """Write all spans but the lives of tensors, which overlap.

    What does not nest within its lane is cut where its parent ends.
    """
    spans = trace.spans[trace.spans["lane_kind"] != str(LaneKind.TENSOR)]
    file.write(_HEAD)
    file.writelines(f'NameProcess, {FIRST_PROCESS + rank}, "rank {rank}"\n' for rank in trace.meta.ranks)
    keys = spans[["rank", "lane"]].drop_duplicates().sort_values(["rank", "lane"], kind="stable")
    for thread, (rank, lane) in enumerate(
        zip(keys["rank"].tolist(), keys["lane"].astype(str).tolist(), strict=True), start=1
    ):
        rows = spans[(spans["rank"] == rank) & (spans["lane"] == lane)]
        process = FIRST_PROCESS + int(rank)
        file.write(f"NameOsThread, {process}, {thread}, {_quoted(f'rank {rank} {lane}')}\n")
        names, categories = rows["name"].astype(str).tolist(), rows["category"].astype(str).tolist()
        start, end = rows["start_ns"].to_numpy(), (rows["start_ns"] + rows["dur_ns"]).to_numpy()
        for at, row in _nested(start, end):
            if row < 0:
                file.write(f"RangePop, {at}, {process}, {thread}\n")
            else:
                colour = f"0x{argb(Category(categories[row])):08X}"
                file.write(f"RangePush, {at}, {process}, {thread}, 1, {colour}, {_quoted(names[row])}\n")


def _nested(start: np.ndarray, end: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pushes (time, row) and pops (time, -1) of one lane, in order."""
    open_until: list[int] = []
    for row in np.lexsort((-end, start)).tolist():
        begin, finish = int(start[row]), int(end[row])
        while open_until and open_until[-1] <= begin:
            yield open_until.pop(), -1
        if open_until:
            finish = min(finish, open_until[-1])
        yield begin, row
        open_until.append(max(finish, begin))
    while open_until:
        yield open_until.pop(), -1
