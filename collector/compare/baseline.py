"""Conditions against an earlier run, for CI (`tl-analyze --baseline OLD --fail-on 'step_ms>+5%'`)."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...timeline.errors import UsageError
from ..analysis import Analysis, analyze
from ..model.breakdown import EXPOSED, IDLE
from ..reports.report import SCHEMA, make_report, step_durations
from .gate import METRICS, PARTS_AND_METRICS, metric
from .runs import ratio_interval

_CONDITION: Final = re.compile(r"([a-z0-9_]+)\s*>\s*\+\s*(\d+(?:\.\d+)?)\s*%")
#: A report of a thousand findings is smaller.
MOST_NBYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """An earlier run, from its report."""

    name: str
    durations_ns: np.ndarray
    metrics: dict[str, float]
    """As `gate.metric` gives them."""


def read_baseline(path: str) -> Baseline:
    """An earlier run: a report that `--json` has written, or a trace.

    Raises:
        UsageError: it is neither.
    """
    report = _report_in(Path(path))
    if report is None:
        report = make_report(analyze(path))
    try:
        durations = np.array(report["steps"]["durations_ns"], dtype=np.int64)
        return Baseline(name=path, durations_ns=durations, metrics=_metrics(report, durations))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--baseline {path}: this report lacks {error}; write it anew with --json") from error


def _report_in(path: Path) -> dict[str, Any] | None:
    """The report in a file; None if the file is something else."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_NBYTES:
            return None
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("schema") == SCHEMA else None


def _metrics(report: dict[str, Any], durations: np.ndarray) -> dict[str, float]:
    parts = report["breakdown"]["median_step_ns"]
    total = max(sum(parts.values()), 1)
    metrics = {part: value / total for part, value in parts.items()}
    metrics["exposed_comm"] = sum(parts[part] for part in EXPOSED if part != IDLE) / total
    metrics["hidden_comm"] = report["breakdown"]["hidden_communication_ns"] / total
    metrics["gain"] = max((finding["predicted_gain"] for finding in report["findings"]), default=0.0)
    metrics["step_ms"] = float(np.median(durations)) / 1e6 if len(durations) else 0.0
    metrics["p95_ms"] = float(np.quantile(durations, 0.95)) / 1e6 if len(durations) else 0.0
    return metrics


def is_relative(condition: str) -> bool:
    """Whether a condition is about a change."""
    return "+" in condition


def check_change(analysis: Analysis, baseline: Baseline, condition: str) -> str | None:
    """What has become worse than it may; None if nothing has.

    Times are compared by their ratio, and a median that chance explains (its 95 % interval holds no growth) is let pass;
    shares are compared by points of the step.

    Raises:
        UsageError: the condition cannot be understood, or there is nothing to compare.
    """
    match = _CONDITION.fullmatch(condition.strip().lower())
    if match is None or match[1] not in PARTS_AND_METRICS:
        raise UsageError(
            f"--fail-on {condition}: against a baseline write a metric, >+, and a share, as step_ms>+5%; metrics: "
            + ", ".join(METRICS)
        )
    name, limit = match[1], float(match[2]) / 100
    now, before = metric(analysis, name), baseline.metrics[name]
    if not name.endswith("_ms"):
        return f"{name} is {now:.1%}, and was {before:.1%}" if now - before > limit else None
    if before <= 0:
        raise UsageError(f"--baseline {baseline.name}: there are no steps in it")
    low, high = ratio_interval(baseline.durations_ns, step_durations(analysis))
    if now / before - 1 <= limit or (name == "step_ms" and low <= 1):
        return None
    return f"{name} is {now:.1f} ms, and was {before:.1f} ms (ratio of medians {low:.2f} to {high:.2f})"
