"""Our own shards (docs/timeline-format.md)."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any, Final

import numpy as np
import pandas as pd

from ..errors import TraceError
from ..model.columns import TableBuilder, Times, assemble
from ..model.ending import RankEnd
from ..model.step_loads import LOADS
from ..model.step_sums import PARTS
from ..model.trace import (
    ARRIVAL_COLUMNS,
    COLLECTIVE_COLUMNS,
    COUNTER_COLUMNS,
    MESSAGE_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    SUM_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    RankClock,
    Trace,
    TraceMeta,
)
from ..read.args import FileArgs
from ..read.source import Source
from ..scanning import scan_all
from ..vocabulary import FRAMEWORKS, Category
from .base import Progress, count_up
from .clock_readings import smooth
from .tlkit_events import INTEGERS, TEXTS, UNKNOWN_NS
from .tlkit_shard import Shard, Table
from .tlkit_sums import KNOWN_OF_SUMS, read_together
from .tlkit_sums_shards import SumsShards, moved

NAME: Final = "tlkit"

#: Missing ranks that a note names.
_MAX_NAMED: Final = 10

_TABLES: Final = ("spans", "collectives", "tensors", "steps", "counters", "messages", "sums")
#: The columns in which the first moment of a run is looked for.
_FIRST_MOMENT: Final = {"spans": "start_ns", "tensors": "submitted_ns", "counters": "ts_ns"}
#: Columns of ns that are no moments.
_LENGTHS: Final = {"dur_ns", "copy_ns", *(f"{part}_ns" for part in PARTS), *LOADS}


def sniff(head: bytes) -> bool:
    """Our first event says who we are."""
    return b'"tlkit_shard"' in head


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the shards of one run.

    Raises:
        TraceError: they hold no events.
    """
    return join(scan_shards(sources, progress))


def scan_shards(sources: Sequence[Source], progress: Progress) -> list[Shard]:
    """Read each shard by itself.

    Raises:
        TraceError: one cannot be read.
    """
    return scan_all(
        sources,
        lambda _, source, events: Shard(source, events),
        count_up(sources, progress),
        integers=INTEGERS,
        texts=TEXTS,
        with_ids=True,
    )


def join(shards: list[Shard]) -> Trace:
    """One trace of the shards of a run, on one clock.

    Raises:
        TraceError: they hold no events.
    """
    shards.sort(key=lambda shard: (shard.header.rank, shard.header.part))
    _share_clock(shards)
    pieces = _pieces(shards)
    in_full = any(isinstance(piece, Shard) and len(piece.steps["step"]) for piece in pieces)
    for piece in pieces:
        if in_full and isinstance(piece, SumsShards):
            piece.leave_out_sums()
    if not any(piece.has_spans for piece in pieces):
        raise TraceError(f"{shards[0].source.path} holds no spans: did the run end before its first step?")
    tables = [table for piece in pieces for table in _tables_of(piece)]
    first_ns = min(
        int(align(columns[name]).min())
        for table, columns, align, _ in tables
        if (name := _FIRST_MOMENT.get(table)) is not None and len(columns[name])
    )

    def finished(times: Times, align: Callable[[Times], Times]) -> Times:
        """On the run's clock, from its first event; -1 for what is unknown."""
        if not len(times):  # most columns of a shard of sums
            return times
        return np.where(times == UNKNOWN_NS, -1, align(times) - first_ns)

    joined: dict[str, list[_Joined]] = {name: [] for name in _TABLES}
    first_args = 0
    for name, columns, align, ranks in tables:
        joined[name].append(_Joined(columns, ranks, partial(finished, align=align), first_args))
        if name == "spans":
            first_args += int((columns["args_row"] >= 0).sum())
    arrivals: dict[tuple[int, int, int], int] = {}
    for piece in pieces:
        if isinstance(piece, Shard):
            _note_arrivals(arrivals, piece, partial(finished, align=_aligned(piece)))
    arrival_table = TableBuilder(ARRIVAL_COLUMNS)
    for key, arrival_ns in sorted(arrivals.items()):
        arrival_table.add(*key, arrival_ns)
    ends = {shard.header.rank: shard.end(partial(finished, align=_aligned(shard))) for shard in shards}
    steps = assemble(STEP_COLUMNS, joined["steps"])
    return Trace(
        meta=_meta(shards, first_ns, ends, knows_order=in_full or all(shard.knows_order for shard in shards)),
        arrivals=arrival_table.finish(),
        raw_args=FileArgs((shard.source, shard.arg_places) for shard in shards),
        spans=assemble(SPAN_COLUMNS, joined["spans"]),
        collectives=assemble(COLLECTIVE_COLUMNS, joined["collectives"]),
        tensors=assemble(TENSOR_COLUMNS, joined["tensors"]),
        steps=steps,
        counters=assemble(COUNTER_COLUMNS, joined["counters"]),
        messages=assemble(MESSAGE_COLUMNS, joined["messages"]),
        sums=_not_in_full(assemble(SUM_COLUMNS, joined["sums"]), steps),
    )


@dataclass(frozen=True, slots=True)
class _Joined(Mapping[str, Any]):
    """A table's columns of a piece as they are in the trace.

    Each is made when it is asked for: of a thousand shards one column at a time is there more than once.
    """

    columns: Table
    ranks: np.ndarray
    finished: Callable[[Times], Times]
    first_args: int
    """Args of the pieces before."""

    def __getitem__(self, name: str) -> Any:
        if name == "rank":
            return self.ranks
        values = self.columns[name]
        if name == "args_row":
            return np.where(values >= 0, values + self.first_args, -1)
        return self.finished(values) if name.endswith("_ns") and name not in _LENGTHS else values

    def __iter__(self) -> Iterator[str]:
        return iter((*self.columns, "rank"))

    def __len__(self) -> int:
        return len(self.columns) + 1


def _not_in_full(sums: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Sums without those of steps that are there in full: one at the border of a part that was dropped may be in both."""
    if not len(sums) or not len(steps):
        return sums
    known, told = (np.stack([table["rank"], table["step"]]).astype(np.int64) for table in (steps, sums))
    # Steps have numbers of 32 bits.
    is_known = np.isin(told[0] << 32 | told[1], known[0] << 32 | known[1])
    # Where sums are all that is recorded, they tell more than that.
    is_known &= (sums[[f"{part}_ns" for part in PARTS]] <= 0).all(axis=1).to_numpy()
    is_known &= (sums[list(LOADS)] < 0).all(axis=1).to_numpy()
    return sums[~is_known].reset_index(drop=True) if is_known.any() else sums


def _pieces(shards: Sequence[Shard]) -> list[Shard | SumsShards]:
    """The shards in their order; those that tell nothing but sums of steps are one piece with their neighbours."""
    candidates = [shard for shard in shards if shard.may_hold_sums_only]
    if not candidates:
        return list(shards)
    sums, counts, bad = read_together([shard.told_sums for shard in candidates])
    ends = np.cumsum(counts)
    steps = {}
    for shard, count, end, number in zip(candidates, counts.tolist(), ends.tolist(), bad, strict=True):
        if count:
            steps[id(shard)] = slice(end - count, end)
            shard.drop("sums_without_sense", number)
        else:
            shard.make_tables({name: values[:0] for name, values in sums.items()}, number)
    pieces: list[Shard | SumsShards] = []
    for has_sums, group in groupby(shards, key=lambda shard: id(shard) in steps):
        members = list(group)
        if not has_sums:
            pieces += members
            continue
        rows = slice(steps[id(members[0])].start, steps[id(members[-1])].stop)
        mine = [steps[id(shard)].stop - steps[id(shard)].start for shard in members]
        pieces.append(SumsShards(members, {name: values[rows] for name, values in sums.items()}, np.array(mine)))
    return pieces


_Piece = tuple[str, Table, Callable[[Times], Times], np.ndarray]
"""A table's name, its columns, what brings their times to the run's clock, and the rank of each row."""


def _tables_of(piece: Shard | SumsShards) -> list[_Piece]:
    if isinstance(piece, Shard):
        tables: dict[str, Table] = {name: getattr(piece, name) for name in _TABLES}
        return [
            (name, columns, _aligned(piece), np.full(_count_of(columns), piece.header.rank, np.int32))
            for name, columns in tables.items()
        ]
    clocks = [_aligned(shard) if shard.clock_readings else None for shard in piece.shards]
    rank_of = np.array([shard.header.rank for shard in piece.shards], np.int32)
    return [
        (name, columns, partial(moved, shard_of_row=shard_of_row, clocks=clocks), rank_of[shard_of_row])
        for name, columns, shard_of_row in piece.tables()
    ]


def _count_of(columns: Table) -> int:
    return len(columns["start_ns" if "start_ns" in columns else "ts_ns"])


def _settings(shards: Sequence[Shard]) -> dict[int, dict[str, float]]:
    """Of each rank the newest that its shard, or a part of it, tells; ranks with none left out."""
    told = {shard.header.rank: shard.settings for shard in shards if shard.settings is not None}
    return {rank: on for rank, on in told.items() if on}


def _details(shards: Sequence[Shard]) -> dict[int, dict[str, str]]:
    """Words for what `_settings` returns."""
    told = {shard.header.rank: shard.details for shard in shards if shard.settings is not None}
    return {rank: words for rank, words in told.items() if words}


def _share_clock(shards: Sequence[Shard]) -> None:
    """Parts of one rank's shard have one clock, which is measured now and then in one of them."""
    by_rank: dict[int, list[Shard]] = {}
    for shard in shards:
        by_rank.setdefault(shard.header.rank, []).append(shard)
    for parts in by_rank.values():
        if len(parts) > 1:
            readings = [reading for part in parts for reading in part.clock_readings]
            for part in parts:
                part.clock_readings = readings


def _note_arrivals(arrivals: dict[tuple[int, int, int], int], shard: Shard, finished: Callable[[Times], Times]) -> None:
    """Arrivals by process set, seq and rank; a rank's own word wins over what the first rank of the set tells of it."""
    keys = list(zip(shard.collectives["process_set"].tolist(), shard.collectives["seq"].tolist(), strict=True))
    submitted = finished(shard.collectives["submitted_ns"])
    for (process_set, seq), own in zip(keys, submitted.tolist(), strict=True):
        if own >= 0:
            arrivals[process_set, seq, shard.header.rank] = own
    if shard.told_arrivals:
        times = finished(np.array([at for _, _, at in shard.told_arrivals], np.int64)).tolist()
        for (row, rank, _), at in zip(shard.told_arrivals, times, strict=True):
            arrivals.setdefault((*keys[row], rank), at)


def _aligned(shard: Shard) -> Callable[[Times], Times]:
    """Follows a rank's clock where the runtime has measured it again: between two readings it drifts evenly."""
    if not _smoothed(shard):
        return lambda times: times
    base = shard.header.offset_ns
    readings = _smoothed(shard)
    at_ns = np.array([0, *(at for at, _ in readings)], dtype=np.int64)
    change_ns = np.array([0, *(offset - base for _, offset in readings)])

    def corrected(times: Times) -> Times:
        moved: Times = times + np.rint(np.interp(times, at_ns, change_ns)).astype(np.int64)
        return moved

    return corrected


def _smoothed(shard: Shard) -> list[tuple[int, int]]:
    return smooth((shard.header.offset_ns, shard.header.uncertainty_ns), shard.clock_readings)


def _rank_clock(shard: Shard) -> RankClock:
    """What the runtime has measured: at the start, and the drift since from its later readings."""
    drift = 0.0
    if _smoothed(shard):
        at_ns, offset_ns = _smoothed(shard)[-1]
        drift = (offset_ns - shard.header.offset_ns) / max(at_ns, 1)
    return RankClock(offset_ns=shard.header.offset_ns, drift=drift, uncertainty_ns=shard.header.uncertainty_ns)


def _meta(shards: Sequence[Shard], first_ns: int, ends: dict[int, RankEnd], *, knows_order: bool) -> TraceMeta:
    headers = [shard.header for shard in shards]
    ranks = tuple(sorted({header.rank for header in headers}))
    size = max(*(header.size for header in headers), len(ranks))
    notes = []
    if size > len(ranks):
        # The size is a number out of the file: look for as many missing ranks as are named, not for all there might be.
        missing = list(islice((rank for rank in range(size) if rank not in ranks), _MAX_NAMED))
        more = ", …" if size - len(ranks) > len(missing) else ""
        notes.append(f"{size - len(ranks)} of {size} ranks have no shard here: {', '.join(map(str, missing))}{more}")
    dropped: Counter[str] = sum((shard.source.dropped for shard in shards), Counter())
    return TraceMeta(
        format=NAME,
        files=tuple(str(shard.source.path) for shard in shards),
        ranks=ranks,
        size=size,
        events=sum(shard.count for shard in shards),
        dropped=dict(dropped),
        clock=Clock(
            method="single" if len(ranks) == 1 else "runtime",
            uncertainty_ns=max(header.uncertainty_ns for header in headers),
            ranks={shard.header.rank: _rank_clock(shard) for shard in shards},
        ),
        known_categories=frozenset(Category) if knows_order else KNOWN_OF_SUMS,
        runtime="torch" if any(header.runtime == "torch" for header in headers) else "horovod",
        framework=headers[0].framework if headers[0].framework in FRAMEWORKS else "",
        hosts={header.rank: header.host for header in headers},
        local_ranks={header.rank: header.local_rank for header in headers},
        run_id=headers[0].run_id,
        largest_gradient=next((shard.largest_gradient for shard in shards if shard.largest_gradient), None),
        settings=_settings(shards),
        setting_details=_details(shards),
        notes=tuple(notes),
        epoch_unix_ns=next((header.origin_unix_ns + first_ns for header in headers if header.rank == 0), 0),
        knows_order=knows_order,
        ends=ends,
    )
