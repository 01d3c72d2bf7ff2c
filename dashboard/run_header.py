"""What every page says of the run: which one it is, where it ran and when, and how much of it there is."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..timeline.commands.arguments import clean

if TYPE_CHECKING:
    from ..collector.analysis import Analysis
    from ..timeline.model.trace import Trace, TraceMeta

#: A rank that has said nothing for so long beside the others is not counted as connected.
HEARD_NS: Final = 10 * 10**9
#: Steps over which a live page counts how many there are in a second.
RECENT_STEPS: Final = 20
#: Hosts that are named.
_MAX_NAMED: Final = 3
#: Units of a length, and from how many of it on each is used.
_UNITS: Final = (
    (86_400 * 10**9, "days", 3),
    (3600 * 10**9, "h", 2),
    (60 * 10**9, "min", 2),
    (10**9, "s", 1),
    (10**6, "ms", 1),
    (10**3, "µs", 0),
)


def describe_run(analysis: "Analysis | None") -> str:
    """One line, parts divided by dots; "" while there is nothing to show.

    >>> describe_run(None)
    ''
    """
    if analysis is None:
        return ""
    meta = analysis.trace.meta
    parts = [run_name(analysis), describe_ranks(meta)]
    if meta.epoch_unix_ns > 0:
        parts.append(f"{datetime.fromtimestamp(meta.epoch_unix_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC")
    parts += [_length(analysis), f"{meta.events:,} events"]
    return clean(" · ".join(part for part in parts if part))


def describe_ranks(meta: "TraceMeta") -> str:
    """How many ranks a trace has, and on which hosts they ran."""
    hosts = sorted(set(meta.hosts.values()), key=_naturally)
    count = len(meta.ranks)
    ranks = f"{count} rank{'s' if count != 1 else ''}" + (f" of {meta.size}" if meta.size > count else "")
    return clean(f"{ranks} on {_several(hosts)}" if hosts else ranks)


def describe_trace(trace: "Trace") -> list[tuple[str, str]]:
    """What is known of a run that has been read and is yet to be analysed."""
    steps = [("steps", f"{trace.steps['step'].nunique():,}")] if len(trace.steps) else []
    return [("ranks", describe_ranks(trace.meta)), *steps, ("events", f"{trace.meta.events:,}")]


def run_name(analysis: "Analysis | None") -> str:
    """The file's name, and how many more there are; for the title of the tab, too."""
    return "" if analysis is None else name_of_files(analysis.trace.meta.files)


def name_of_files(files: Sequence[str]) -> str:
    """The name of the first one, and how many more there are; "" without files."""
    if not files:
        return ""
    first = min((Path(name).name for name in files), key=lambda name: (len(name), name))
    return clean(first if len(files) == 1 else f"{first} and {len(files) - 1} more")


def describe_pulse(analysis: "Analysis | None", now_unix_ns: int) -> str:
    """How a live run does: steps a second, age of the newest step, ranks that are heard of.

    Args:
        now_unix_ns: the wall clock.
    """
    if analysis is None or not analysis.facts.steps.count:
        return ""
    steps, meta = analysis.facts.steps, analysis.trace.meta
    newest = steps.start_ns.shape[1] - min(RECENT_STEPS, steps.count)
    took_s = float(steps.end_ns[0, -1] - steps.start_ns[0, newest]) / 1e9
    parts = [f"{(steps.count - newest) / took_s:.3g} steps/s" if took_s > 0 else ""]
    if meta.epoch_unix_ns > 0:
        age_s = max(now_unix_ns - meta.epoch_unix_ns - int(steps.end_ns[:, -1].max()), 0) / 1e9
        parts.append(f"newest step {age_s:.0f} s ago" if age_s < 120 else f"newest step {age_s / 60:.0f} min ago")  # noqa: PLR2004
    heard = _heard_of(analysis)
    parts.append(f"{heard} of {meta.size} ranks connected")
    return " · ".join(filter(None, parts))


def _heard_of(analysis: "Analysis") -> int:
    """Ranks with an event in the last seconds of what has been recorded."""
    spans = analysis.trace.spans
    last = (spans["start_ns"] + spans["dur_ns"]).groupby(spans["rank"]).max()
    return int((last >= last.max() - HEARD_NS).sum()) if len(last) else 0


def _naturally(name: str) -> tuple[object, ...]:
    """So that host-10 comes after host-9; numbers are every other part."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d{1,18})", name))


def _several(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more hosts"


def _length(analysis: "Analysis") -> str:
    last_ns, steps = analysis.facts.end_ns, analysis.facts.steps.count
    if not len(analysis.trace.spans):
        return ""
    size, unit = next((size, unit) for size, unit, least in _UNITS if last_ns >= least * size)
    value = last_ns / size
    length = f"{value:.2f} {unit}" if value < 2 else f"{value:.1f} {unit}"  # noqa: PLR2004  two digits at least
    return f"{length}, {steps} steps analysed" if steps else length
