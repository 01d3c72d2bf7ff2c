"""What torch.profiler saw, put into the timeline of the same run.

The handler of the runtime writes at the head of the profiler's file which run, which rank and how the host's wall clock relates
to the run's (`Beside`).  So no clock has to be guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from ..errors import TraceError
from ..model.trace import (
    ARRIVAL_COLUMNS,
    COLLECTIVE_COLUMNS,
    LAUNCH_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    Trace,
    make_table,
)
from ..vocabulary import CostlySetting, LaneKind
from .args import FileArgs


class Beside(msgspec.Struct, frozen=True):
    """Where a profile belongs."""

    run_id: str
    rank: int
    size: int
    wall_ahead_ns: int
    """How far the wall clock of the rank's host was ahead of the run's (`TraceMeta.epoch_unix_ns`)."""


def with_profile(own: Trace, profile: Trace, places: Sequence[Beside | None]) -> Trace:
    """The timeline with the profiler's spans in it.

    A profile without a device only adds detail: lanes of their own, which no diagnosis looks at.  With a device its kernels are
    what computes and communicates, and the steps are those that were profiled from beginning to end; the timeline's spans of
    the training thread become those of a host that hands out work.

    Args:
        places: of the files of the profile.

    Raises:
        TraceError: the profile is not of this run.
    """
    ahead = {
        place.rank: place.wall_ahead_ns for place in places if place is not None and place.run_id == own.meta.run_id
    }
    strangers = [rank for rank in profile.meta.ranks if rank not in ahead or rank not in own.meta.ranks]
    if strangers or not own.meta.epoch_unix_ns:
        raise TraceError(
            f"the profile of rank {strangers[0] if strangers else 0} was not taken during the run of this timeline: profile with "
            "on_trace_ready=tlkit.trace_handler(), which notes the run, or open one kind of file at a time"
        )
    shift = {rank: profile.meta.epoch_unix_ns - ahead[rank] - own.meta.epoch_unix_ns for rank in ahead}
    has_device = bool((profile.spans["lane_kind"] == str(LaneKind.HOST)).any())
    spans = _moved(profile.spans, shift, ("start_ns",))
    spans["args_row"] = np.where(spans["args_row"] >= 0, spans["args_row"] + len(own.raw_args), -1)
    mine = own.spans
    if has_device:
        mine = _as_host(mine)
    else:
        spans["lane_kind"] = pd.Categorical([str(LaneKind.OTHER)] * len(spans))
    spans["lane"] = spans["lane"].cat.rename_categories(lambda lane: f"profiler: {lane}")
    merged = replace(
        own,
        meta=replace(
            own.meta,
            files=(*own.meta.files, *profile.meta.files),
            events=own.meta.events + profile.meta.events,
            known_categories=own.meta.known_categories | profile.meta.known_categories,
            notes=(*own.meta.notes, *profile.meta.notes),
            settings=_without_profiler(own.meta.settings),
        ),
        spans=_in_order(_stacked(mine, spans)),
        raw_args=_joined(own.raw_args, profile.raw_args),
        cache_key=None,
    )
    if not has_device:
        return merged
    times = ("submitted_ns", "negotiated_ns", "start_ns")
    launches = _moved(profile.launches, shift, ("start_ns", "launched_ns"))
    launches["thread"] = launches["thread"].cat.rename_categories(lambda lane: f"profiler: {lane}")
    collectives = _moved(profile.collectives, shift, times)
    arrivals = _moved(profile.arrivals, shift, ("arrival_ns",))
    return replace(
        merged,
        collectives=make_table(COLLECTIVE_COLUMNS, dict(collectives)),
        arrivals=make_table(ARRIVAL_COLUMNS, dict(arrivals)),
        launches=make_table(LAUNCH_COLUMNS, dict(launches)),
        steps=_profiled(own.steps, spans),
    )


def _without_profiler(settings: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    """What was on beside the profiler, which nobody left on by mistake who reads its files."""
    profiler = str(CostlySetting.TORCH_PROFILER)
    rest = {rank: {name: share for name, share in on.items() if name != profiler} for rank, on in settings.items()}
    return {rank: on for rank, on in rest.items() if on}


def _moved(table: pd.DataFrame, shift: dict[int, int], columns: Sequence[str]) -> pd.DataFrame:
    """A copy with times on the timeline's clock; -1 stays unknown."""
    by = table["rank"].map(shift).to_numpy(dtype=np.int64)
    changed = {
        name: np.where(table[name].to_numpy() < 0, -1, table[name].to_numpy() + by)
        if name != "start_ns"
        else table[name] + by
        for name in columns
    }
    return table.assign(**changed)


def _as_host(spans: pd.DataFrame) -> pd.DataFrame:
    """What the training thread and the runtime's threads did, where a device is looked at."""
    kind = spans["lane_kind"].astype("str")
    became = {str(LaneKind.COMPUTE): str(LaneKind.HOST), str(LaneKind.COMMUNICATION): str(LaneKind.OTHER)}
    if (kind == str(LaneKind.HOST)).any():  # the timeline has device times of its own, coarser than kernels
        became[str(LaneKind.COMPUTE)] = str(LaneKind.OTHER)
    return spans.assign(lane_kind=pd.Categorical(kind.replace(became)))


def _profiled(steps: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Steps of which the profiler saw the whole, on every rank."""
    ends = spans["start_ns"] + spans["dur_ns"]
    first = spans["start_ns"].groupby(spans["rank"]).min()
    last = ends.groupby(spans["rank"]).max()
    rank = steps["rank"]
    whole = (steps["start_ns"] >= rank.map(first)) & (steps["end_ns"] <= rank.map(last))
    return make_table(STEP_COLUMNS, dict(steps[whole].reset_index(drop=True)))


def _stacked(*tables: pd.DataFrame) -> pd.DataFrame:
    """Spans of several tables, one below the other."""
    data: dict[str, object] = {}
    for name, dtype in SPAN_COLUMNS.items():
        columns = [table[name] for table in tables]
        is_text = dtype == "category"
        data[name] = (
            union_categoricals(columns) if is_text else np.concatenate([column.to_numpy() for column in columns])
        )
    return make_table(SPAN_COLUMNS, data)


def _in_order(spans: pd.DataFrame) -> pd.DataFrame:
    """By rank, and within a rank in the order of their starts."""
    return spans.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)


def _joined(own: Sequence[bytes], profile: Sequence[bytes]) -> Sequence[bytes]:
    if isinstance(own, FileArgs) and isinstance(profile, FileArgs):
        return FileArgs((*own.parts, *profile.parts))
    return [*own, *profile]
