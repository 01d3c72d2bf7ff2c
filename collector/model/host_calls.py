"""What the host's spans of a profile are, by their names: calls that wait, operators, annotations, frames of Python.

Profilers of different makers and years give categories of their own, or none; the names are the same in all of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import Category, LaneKind
from .arrays import Integers, Mask
from .intervals import Intervals, Times, normalise

Codes = Integers

#: A call that returns sooner than this has only enqueued a copy, or found nothing to wait for.
MIN_BLOCKING_NS: Final = 50_000


class HostKind(IntEnum):
    """What a span of the host is."""

    SYNCHRONISING = 0
    """Returns when the device has caught up."""
    COPYING = 1
    LOADING = 2
    COLLECTIVE = 3
    PREPROCESSING = 4
    RUNTIME = 5
    OPERATOR = 6
    PYTHON = 7
    ANNOTATION = 8
    STEP = 9


_PYTHON: Final = r"\.py\(\d+\): |^<built-in |^nn\.Module: |^<string>|^<frozen |^<method "
#: Libraries that decode and transform samples by the file of a frame, operators and annotations by what they say.
_PREPROCESSING: Final = (
    r"(?:torchvision|torchaudio|decord|librosa|cv2|PIL)/\S*\.py\(\d+\)|(?:preprocess|image_processing|video_processing)\w*\.py\("
    r"|^(?!.*\.py\()(?!nn\.Module).*(?:[Pp]re_?process|torchvision::|decode_(?:jpe?g|png|audio|video)|read_video|video_decod"
    r"|[Cc]ollate|[Tt]okeniz|_upsample_\w+_aa)"
)

#: In order: the first that matches decides.
_PATTERNS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (HostKind.STEP, r"^ProfilerStep|^STEP$|^execute_|^step\[|^Iteration|^PyTorch Profiler"),
        (HostKind.SYNCHRONISING, r"^(?:cuda|hip|cu)\w*Synchronize|^(?:cuda|hip)(?:Malloc|Free|HostAlloc)|^cuMem(?:Alloc|Free)"),
        (HostKind.SYNCHRONISING, r"^aten::_local_scalar_dense"),
        (HostKind.COPYING, r"^(?:cuda|hip|cu)Memcpy"),
        (HostKind.LOADING, r"^enumerate\(DataLoader\)|^DataLoader|dataloader.*__next__|^DATA_WAIT$"),
        (HostKind.COLLECTIVE, r"^(?:gloo|mpi|ucc|hccl):"),
        (HostKind.PREPROCESSING, _PREPROCESSING),
        (HostKind.RUNTIME, r"^(?:cuda|hip|cu|mtia|musa)[A-Z]\w*$"),
        (HostKind.PYTHON, _PYTHON),
        (HostKind.OPERATOR, r"::|Backward\d*$"),
    )
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def kind_of(name: str) -> HostKind:
    """What a span of the host is, by its name.

    >>> kind_of("cudaStreamSynchronize").name, kind_of("aten::mm").name, kind_of("## forward ##").name
    ('SYNCHRONISING', 'OPERATOR', 'ANNOTATION')
    """
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), HostKind.ANNOTATION)


@dataclass(frozen=True, kw_only=True)
class Host:
    """The host's spans of one rank, in order of their starts."""

    starts: Times
    ends: Times
    name: Codes
    names: Sequence[str]
    kind: Codes
    thread: Codes
    threads: tuple[str, ...]

    def on(self, thread: int) -> Mask:
        """Which spans are on a thread, by its place in `threads`; -1 for all."""
        return np.ones(len(self.starts), dtype=bool) if thread < 0 else self.thread == thread

    def moments(self, kinds: Sequence[HostKind], thread: int) -> Intervals:
        """When a span of these kinds is open; calls that return at once do not count as waiting."""
        is_wanted = np.zeros(len(HostKind), dtype=bool)
        is_wanted[[int(kind) for kind in kinds]] = True
        chosen = is_wanted[self.kind] & self.takes_time
        if thread >= 0:
            chosen &= self.on(thread)
        return normalise(self.starts[chosen], self.ends[chosen])

    @cached_property
    def takes_time(self) -> Mask:
        """All but the short ones of the calls that may wait."""
        may_wait = self.kind <= int(HostKind.COPYING)
        long: Mask = ~may_wait | (self.ends - self.starts >= MIN_BLOCKING_NS)
        return long

    @cached_property
    def operators(self) -> Codes:
        """Spans that are operators inside no other one on their thread."""
        operators = np.flatnonzero(self._is_operator)
        thread = self.thread[operators]
        chosen = [self._outermost(operators[thread == number]) for number in np.unique(thread).tolist()]
        rows: Codes = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)
        return rows

    def open_at(self, rows: Codes, thread: Codes, at: Times) -> Codes:
        """Of some spans the one begun last on a thread if it is open at a moment; -1 if it is not.

        Args:
            rows: of these spans, in order of their starts; those of a thread follow each other.
            thread: place in `threads` of each moment.
            at: moments, ns.
        """
        result = np.full(len(at), -1, dtype=np.int64)
        for number in np.unique(thread).tolist():
            mine = rows[self.thread[rows] == number]
            wanted = thread == number
            if not len(mine) or number < 0:
                continue
            position = np.searchsorted(self.starts[mine], at[wanted], side="right") - 1
            row = mine[np.maximum(position, 0)]
            result[wanted] = np.where((position >= 0) & (at[wanted] < self.ends[row]), row, -1)
        return result

    @property
    def _is_operator(self) -> Mask:
        named = np.array(["::" in name for name in self.names] or [False], dtype=bool)[self.name]
        is_operator: Mask = (self.kind == int(HostKind.OPERATOR)) | (
            named & np.isin(self.kind, [int(HostKind.SYNCHRONISING), int(HostKind.PREPROCESSING)])
        )
        return is_operator

    def _outermost(self, rows: Codes) -> Codes:
        if not len(rows):
            return rows
        until = np.maximum.accumulate(self.ends[rows])
        outermost: Codes = rows[np.concatenate(([True], self.starts[rows][1:] >= until[:-1]))]
        return outermost


def read_host(spans: pd.DataFrame) -> Host:
    """The host's spans among those of one rank."""
    # Column by column: of tables of millions of rows the columns that nobody needs here are worth seconds.
    chosen = np.flatnonzero(spans["lane_kind"].isin([str(LaneKind.HOST), str(LaneKind.DATA)]).to_numpy())
    starts = spans["start_ns"].to_numpy(dtype=np.int64)[chosen]
    order = np.argsort(starts, kind="stable")
    chosen, starts = chosen[order], starts[order]
    names = [str(name) for name in spans["name"].cat.categories]
    kind_of_name = np.array([kind_of(name) for name in names] or [HostKind.STEP], dtype=np.int64)
    name = spans["name"].cat.codes.to_numpy()[chosen].astype(np.int64)
    kind = kind_of_name[name] if len(name) else name
    kind = np.where((spans["category"] == str(Category.DATA)).to_numpy()[chosen], int(HostKind.LOADING), kind)
    # Ranges of NVTX are on tracks of their own beside the calls of their thread.
    lanes = [str(lane).removeprefix("NVTX ") for lane in spans["lane"].cat.categories]
    threads = tuple(dict.fromkeys(lanes))
    of_lane = np.array([threads.index(lane) for lane in lanes] or [0], dtype=np.int64)
    return Host(
        starts=starts,
        ends=starts + spans["dur_ns"].to_numpy(dtype=np.int64)[chosen],
        name=name,
        names=names,
        kind=kind,
        thread=of_lane[spans["lane"].cat.codes.to_numpy()[chosen]] if len(name) else name,
        threads=threads,
    )
