"""What the trace is: how the run ended, and what the trace can and cannot be asked.

Everything else in a report is read in this light, so it is said first.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from ...timeline.model.trace import Trace
from .condition_words import describe
from .endings import RankEnding, Waiting, find_endings, find_waiting
from .host_load import HostLoad
from .steps import Steps

#: Clocks that agree no better than this share of a step cannot order what ranks do in it.
MAX_UNCERTAINTY_RATIO: Final = 0.1
#: Silence of so many steps, and at least so long, is a hang.
MIN_HANG_STEPS: Final = 10
MIN_HANG_NS: Final = 2_000_000_000
#: A rank whose file stops this long before the others' has stopped before them: files are written twice a second or oftener.
MIN_STOP_LEAD_NS: Final = 1_500_000_000
#: A file without an end whose last event is younger than this may be of a run that goes on.
MAX_FRESH_NS: Final = 10_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """How a run ended and what its trace allows to say."""

    ending: str
    """`complete`, `ended-early`, `hung`, `running` (no file has an end, and the last event is new) or `unknown`."""
    ended_ns: int
    """When the last rank did its last thing, ns of the run clock."""
    endings: tuple[RankEnding, ...]
    blamed_ranks: tuple[int, ...]
    """Ranks that ended the run or that the others waited for; () if the trace does not tell."""
    waiting: tuple[Waiting, ...]
    missing_ranks: int
    """Ranks of the job that recorded nothing, where each rank writes a file of its own."""
    recorded_ranks: tuple[int, ...]
    size: int
    can_compare_ranks: bool
    """Whether durations of all ranks' own work are there."""
    can_compare_times: bool
    """Whether one clock orders what different ranks do."""
    clock_method: str
    clock_uncertainty_ns: int
    steps: int
    """Analysed steps."""
    recorded_steps_ratio: float
    """Share of the steps of the run that were recorded, between the first and the last one."""
    load: HostLoad | None
    """Who had the cores, where that was recorded."""

    @property
    def has_failed(self) -> bool:
        """Whether the run did not come to its end."""
        return self.ending in {"ended-early", "hung"}

    @property
    def is_incomplete(self) -> bool:
        """Whether files of ranks are missing."""
        return self.missing_ranks > 0

    def sentences(self) -> tuple[str, ...]:
        """What has to be known before anything else, most important first; () for a complete run and trace."""
        return describe(self)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        described = asdict(self)
        return described | {"sentences": list(self.sentences())}


def find_condition(trace: Trace, steps: Steps, load: HostLoad | None, *, now_unix_ns: int = 0) -> Condition:
    """Look at how a trace ends and what it holds.

    Args:
        trace: the run.
        steps: its analysed steps.
        load: who had the cores over them.
        now_unix_ns: the wall clock, to tell a run that goes on from one that was cut off; 0 if it does not matter.
    """
    meta = trace.meta
    endings, waiting = find_endings(trace), find_waiting(trace)
    step_ns = float(np.median(steps.duration_ns)) if steps.count else 0.0
    ending, blamed = _ending(trace, endings, waiting, step_ns, now_unix_ns)
    # Horovod's own timeline is of rank 0 alone, and that is all there is.
    writes_every_rank = meta.format != "horovod"
    # Ranks that the user has left out are here all the same.
    missing = max(meta.size - len({*meta.ranks, *meta.ends}), 0) if writes_every_rank else 0
    several = len(meta.ranks) > 1
    aligned = meta.clock.method != "none"
    precise = not step_ns or meta.clock.uncertainty_ns <= MAX_UNCERTAINTY_RATIO * step_ns
    return Condition(
        ending=ending,
        ended_ns=max((end.last_ns for end in endings), default=0),
        endings=endings,
        blamed_ranks=blamed,
        waiting=waiting,
        missing_ranks=missing,
        recorded_ranks=meta.ranks,
        size=max(meta.size, len(meta.ranks)),
        can_compare_ranks=several and not missing,
        can_compare_times=not several or (aligned and precise),
        clock_method=meta.clock.method,
        clock_uncertainty_ns=meta.clock.uncertainty_ns,
        steps=steps.count,
        recorded_steps_ratio=_recorded_ratio(trace),
        load=load,
    )


def _ending(
    trace: Trace,
    endings: tuple[RankEnding, ...],
    waiting: tuple[Waiting, ...],
    step_ns: float,
    now_unix_ns: int,
) -> tuple[str, tuple[int, ...]]:
    """How the run ended, and through which ranks."""
    if not endings or all(end.how == "unknown" for end in endings):
        return _ending_without_marks(trace, endings, waiting, step_ns)
    blamed = _awaited(endings, waiting)
    if all(end.how == "closed" for end in endings):
        return ("ended-early", blamed) if waiting else ("complete", ())
    last_ns, alive_ns = max(end.last_ns for end in endings), max(end.alive_ns for end in endings)
    if alive_ns - last_ns >= max(MIN_HANG_NS, MIN_HANG_STEPS * step_ns):
        return "hung", blamed
    is_cut_off = all(end.how == "cut" and alive_ns - end.alive_ns < MIN_STOP_LEAD_NS for end in endings)
    epoch_ns = trace.meta.epoch_unix_ns
    if is_cut_off and epoch_ns and now_unix_ns and now_unix_ns - epoch_ns - alive_ns < MAX_FRESH_NS:
        return "running", ()
    return "ended-early", _first_to_end(endings, alive_ns) or blamed


def _first_to_end(endings: tuple[RankEnding, ...], alive_ns: int) -> tuple[int, ...]:
    """The ranks that failed of themselves, or stopped while others went on; () if no rank stands out."""
    failed = tuple(end.rank for end in endings if end.how == "failed" and not end.is_secondary)
    if failed:
        return failed
    cut = [end for end in endings if end.how == "cut"]
    before = tuple(end.rank for end in cut if alive_ns - end.alive_ns >= MIN_STOP_LEAD_NS)
    if before and len(before) < len(endings):
        return before
    is_some_closed = len(cut) < len(endings)
    return tuple(end.rank for end in cut) if is_some_closed else ()


def _ending_without_marks(
    trace: Trace, endings: tuple[RankEnding, ...], waiting: tuple[Waiting, ...], step_ns: float
) -> tuple[str, tuple[int, ...]]:
    """Where a format has no mark for an end, only tensors that wait for long tell that there was none."""
    if waiting and any(end.is_snapshot for end in trace.meta.ends.values()):
        return "hung", waiting[0].missing
    last_ns = max((end.last_ns for end in endings), default=0)
    if waiting and step_ns and last_ns - waiting[0].since_ns >= max(MIN_HANG_NS, MIN_HANG_STEPS * step_ns):
        return "hung", waiting[0].missing
    return ("ended-early", waiting[0].missing) if waiting else ("unknown", ())


def _awaited(endings: tuple[RankEnding, ...], waiting: tuple[Waiting, ...]) -> tuple[int, ...]:
    """The ranks that others were waiting for, and that did not wait themselves."""
    idle = {end.rank for end in endings if end.is_waiting}
    missing = {rank for item in waiting for rank in item.missing}
    if missing:
        return tuple(sorted(missing - idle)) or tuple(sorted(missing))
    return tuple(end.rank for end in endings if end.rank not in idle) if idle else ()


def _recorded_ratio(trace: Trace) -> float:
    """Recorded steps of the first rank over those that its numbers span."""
    if trace.steps.empty:
        return 1.0
    first = trace.steps[trace.steps["rank"] == trace.steps["rank"].iloc[0]]["step"]
    return float(min(first.nunique() / max(int(first.max() - first.min()) + 1, 1), 1.0))
