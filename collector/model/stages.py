"""Stages of a tf.data pipeline: how long each one works on a batch, and which of them the training waits for.

A stage is named by its way from the root, `Iterator::Root::Prefetch::Map`.  Its own time is what it and the user's function
in it take, without the stages that it asks.  A stage with threads of its own only waits where it is asked: its work is on those
threads.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace
from ...timeline.vocabulary import STAGE, STAGE_CALLS, STAGE_FUNCTION, STAGE_PRODUCE, STAGE_WORK, LaneKind
from .steps import Steps

ROOT: Final = f"{STAGE}Root"
#: Characters of args that are looked at.
_MAX_ARGS: Final = 65536
#: Stages of such names run a function of the user's.
_WITH_FUNCTION: Final = ("Map", "Filter", "Interleave", "Generator", "Scan", "GroupBy")
#: What these hand on others have made.
_HANDS_ON: Final = frozenset(
    {"Root", "Prefetch", "Batch", "ParallelBatch", "Shuffle", "ShuffleAndRepeat", "Repeat", "Zip"}
)
#: A thread with less of a stage's work than this share of the busiest one's does not count.
MIN_THREAD_RATIO: Final = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage, per batch that the training takes."""

    path: str
    own_ns: float
    """Work on a batch, of all its threads together."""
    threads: int
    """How many work for it."""
    parallelism: int
    """Calls at a time that it may make; 0 if the trace does not say."""
    has_function: bool
    """Whether the time is that of the user's function."""

    @property
    def kind(self) -> str:
        """What it is: `Map`, `MapAndBatch`, `TFRecord`; versions of one kind are the same."""
        return self.path.rpartition("::")[2].rstrip("0123456789").removesuffix("V")

    @property
    def pace_ns(self) -> float:
        """How often it can hand over a batch."""
        return self.own_ns / max(self.threads, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """The stages that make batches, slowest first."""

    stages: tuple[Stage, ...]
    cores: int
    """Cores that the pipeline may use, 0 if unknown."""

    @property
    def work_ns(self) -> float:
        """Of all stages together, a batch."""
        return sum(stage.own_ns for stage in self.stages)

    @property
    def making_ns(self) -> float:
        """Of the stages that make elements, a batch: what cache() behind them would save."""
        return sum(stage.own_ns for stage in self.stages if stage.kind not in _HANDS_ON)

    @property
    def has_prefetch(self) -> bool:
        """Whether batches are made while the training computes."""
        return any(
            stage.kind == "Prefetch" and stage.path.count("::") <= 3  # noqa: PLR2004  next to the root, but for options
            for stage in self.stages
        )


def has_pipeline(trace: Trace) -> bool:
    """Whether any rank shows stages of a pipeline."""
    return bool(trace.spans["name"].cat.categories.str.startswith(STAGE).any())


def find_pipeline(trace: Trace, spans: pd.DataFrame) -> Pipeline | None:
    """The stages in some spans of one rank; None if there are none.

    Args:
        spans: of the steps that are looked at.
    """
    names = spans["name"].cat.categories
    chosen = spans[spans["name"].cat.codes.isin(np.flatnonzero(names.str.startswith(STAGE)))]
    asked = chosen[(chosen["name"] == ROOT) & (chosen["lane_kind"] == str(LaneKind.DATA))]
    if asked.empty:
        return None
    own: dict[str, float] = {}
    by_lane: dict[str, list[float]] = {}
    with_function: set[str] = set()
    for _, rows in chosen.groupby("lane", observed=True):
        for name, own_ns in _own_times(rows).items():
            own[name] = own.get(name, 0.0) + own_ns
            by_lane.setdefault(name, []).append(own_ns)
    paths = {name.removesuffix(STAGE_PRODUCE).removesuffix(STAGE_FUNCTION) for name in own}
    stages = []
    for path in paths:
        function_ns = own.get(path + STAGE_FUNCTION, 0.0)
        produced_ns = own.get(path + STAGE_PRODUCE)
        own_ns = function_ns + (own.get(path, 0.0) if produced_ns is None else produced_ns)
        working = path + STAGE_FUNCTION if function_ns > own_ns / 2 else path
        if function_ns > own_ns / 2:
            with_function.add(path)
        stages.append((path, own_ns, _threads(by_lane.get(working, []))))
    settings = {path: _settings(trace, chosen[chosen["name"] == path]) for path in paths}
    count = len(asked)
    found = [
        Stage(
            path=path,
            own_ns=own_ns / count,
            threads=max(threads, 1),
            parallelism=_number(settings[path], "parallelism"),
            has_function=path in with_function,
        )
        for path, own_ns, threads in stages
    ]
    found.sort(key=lambda stage: (-stage.pace_ns, stage.path))
    return Pipeline(stages=tuple(found), cores=_number(settings.get(ROOT, {}), "cpu_budget"))


def counted_pipeline(trace: Trace, steps: Steps, rank: int) -> Pipeline | None:
    """The stages by what was counted of them over the analysed steps of a rank; None if nothing was."""
    counters = trace.counters
    names = counters["name"].cat.categories
    wanted = np.flatnonzero(names.str.startswith(STAGE_WORK) | names.str.startswith(STAGE_CALLS))
    row = steps.ranks.index(rank)
    at_ns = counters["ts_ns"].to_numpy()
    inside = (at_ns >= steps.start_ns[row, 0]) & (at_ns <= steps.end_ns[row, -1]) if steps.count else at_ns < 0
    told = counters[inside & (counters["rank"] == rank).to_numpy() & counters["name"].cat.codes.isin(wanted).to_numpy()]
    mean_values = told.groupby(told["name"].astype(str))["value"].mean()
    means = {str(name): float(value) for name, value in mean_values.items()}
    found = [
        Stage(
            path=name.removeprefix(STAGE_WORK),
            own_ns=work_ns,
            threads=max(round(means.get(name.replace(STAGE_WORK, STAGE_CALLS, 1), 1.0)), 1),
            parallelism=0,
            has_function=any(kind in name.rpartition("::")[2] for kind in _WITH_FUNCTION),
        )
        for name, work_ns in means.items()
        if name.startswith(STAGE_WORK)
    ]
    found.sort(key=lambda stage: (-stage.pace_ns, stage.path))
    return Pipeline(stages=tuple(found), cores=0) if found else None


def _threads(own_ns: list[float]) -> int:
    """How many threads work for it; one that only hands out work does not count."""
    return sum(own > MIN_THREAD_RATIO * max(own_ns) for own in own_ns)


def _own_times(rows: pd.DataFrame) -> dict[str, float]:
    """By name the time of a lane's spans without that of the spans inside them (ns)."""
    start, took = rows["start_ns"].to_numpy(), rows["dur_ns"].to_numpy()
    codes, names = rows["name"].cat.codes.to_numpy(), rows["name"].cat.categories
    total: dict[int, float] = {}
    open_: list[tuple[int, int]] = []
    for row in np.lexsort((-took, start)).tolist():
        begin, code = int(start[row]), int(codes[row])
        while open_ and open_[-1][0] <= begin:
            open_.pop()
        total[code] = total.get(code, 0.0) + float(took[row])
        if open_:
            outer = open_[-1][1]
            total[outer] -= float(took[row])
        open_.append((begin + int(took[row]), code))
    return {str(names[code]): max(own_ns, 0.0) for code, own_ns in total.items()}


def _settings(trace: Trace, rows: pd.DataFrame) -> dict[str, Any]:
    """What the last request says of its stage."""
    if rows.empty or int(rows["args_row"].iloc[-1]) < 0:
        return {}
    try:
        told = json.loads(trace.raw_args[int(rows["args_row"].iloc[-1])][:_MAX_ARGS] or b"{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _number(settings: dict[str, Any], key: str) -> int:
    value = settings.get(key, 0)
    return value if isinstance(value, int) and 0 <= value < 1_000_000 else 0  # noqa: PLR2004  no machine has more


def describe(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """For the report."""
    return [
        {
            "stage": stage.path,
            "own_ns": round(stage.own_ns),
            "threads": stage.threads,
            "parallelism": stage.parallelism,
        }
        for stage in stages
    ]
