"""What every page says of the run: which one it is, where it ran and when, and how much of it there is."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ..collector.analysis import Analysis
from ..timeline.commands import clean

#: Hosts that are named.
_MOST_NAMED: Final = 3
#: From twice a unit on it is used.
_UNITS: Final = ((3600 * 10**9, "h"), (60 * 10**9, "min"), (10**9, "s"))


def describe_run(analysis: Analysis | None) -> str:
    """One line, parts divided by dots; "" while there is nothing to show.

    >>> describe_run(None)
    ''
    """
    if analysis is None:
        return ""
    meta = analysis.trace.meta
    hosts = sorted(set(meta.hosts.values()))
    count = len(meta.ranks)
    ranks = f"{count} rank{'s' if count != 1 else ''}" + (f" of {meta.size}" if meta.size > count else "")
    parts = [run_name(analysis), f"{ranks} on {_several(hosts)}" if hosts else ranks]
    if meta.epoch_unix_ns > 0:
        parts.append(f"{datetime.fromtimestamp(meta.epoch_unix_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC")
    parts += [_length(analysis), f"{meta.events:,} events"]
    return clean(" · ".join(part for part in parts if part))


def run_name(analysis: Analysis | None) -> str:
    """The file's name, and how many more there are; for the title of the tab, too."""
    files = () if analysis is None else analysis.trace.meta.files
    if not files:
        return ""
    first = min((Path(name).name for name in files), key=lambda name: (len(name), name))
    return clean(first if len(files) == 1 else f"{first} and {len(files) - 1} more")


def _several(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more hosts"


def _length(analysis: Analysis) -> str:
    spans = analysis.trace.spans
    if not len(spans):
        return ""
    last_ns = int((spans["start_ns"] + spans["dur_ns"]).max())
    steps = analysis.facts.steps.count
    size, unit = next((size, unit) for size, unit in _UNITS if last_ns >= 2 * size or unit == "s")
    length = f"{last_ns / size:.1f} {unit}"
    return f"{length}, {steps} steps analysed" if steps else length
