"""Conditions against an earlier run, for CI (`tl-analyze --baseline OLD --fail-on 'step_ms>+5%'`)."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..kept import analyze_kept
from ..model.breakdown import PARTS
from ..model.step_times import step_times
from ..reports.report import SCHEMA, make_report
from .gate import (
    METRICS,
    PARTS_AND_METRICS,
    STEP_METRICS,
    STEPS_PER_SECOND,
    is_share,
    metric,
    share_metric,
    value_words,
)
from .runs import sample_of
from .series import Ratio, Sample, compare_samples

_CONDITION: Final = re.compile(r"([a-z0-9_]+)\s*(>\s*\+|<\s*-)\s*(\d+(?:\.\d+)?)\s*%")
#: A report of a thousand findings is smaller.
MAX_NBYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """An earlier run, from its report."""

    name: str
    size: int
    """Ranks of the job."""
    sample: Sample
    metrics: dict[str, float]
    """As `gate.metric` gives them."""


def read_baseline(path: str) -> Baseline:
    """An earlier run: a report that `--json` has written, or a trace.

    Raises:
        UsageError: it is neither.
    """
    report = _report_in(Path(path))
    if report is None:
        report = make_report(analyze_kept(path))
    try:
        steps = report["steps"]
        durations = np.array(steps["durations_ns"], dtype=float)
        checkpoints = np.array(steps["checkpoint_ns"], dtype=float)
        if durations.shape != checkpoints.shape:
            raise ValueError("one checkpoint_ns for each of durations_ns")
        sample = Sample(durations_ns=durations, checkpoint_ns=checkpoints)
        return Baseline(name=path, size=int(report["source"]["size"]), sample=sample, metrics=_metrics(report))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--baseline {path}: this report lacks {error}; create it again with --json") from error


def _report_in(path: Path) -> dict[str, Any] | None:
    """The report in a file; None if the file is something else."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_NBYTES:
            return None
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("schema") == SCHEMA else None


def _metrics(report: dict[str, Any]) -> dict[str, float]:
    breakdown, steps = report["breakdown"], report["steps"]
    parts = {part: int(breakdown["mean_step_ns"][part]) for part in PARTS}
    hidden_ns = float(breakdown["hidden_communication_mean_ns"])
    metrics = {name: float(steps[f"{statistic}_ns"]) / 1e6 for name, statistic in STEP_METRICS.items()}
    metrics[STEPS_PER_SECOND] = float(steps["steps_per_second"])
    metrics["gain"] = max((finding["predicted_gain"] for finding in report["findings"]), default=0.0)
    shares = {*PARTS, *METRICS} - set(metrics)
    return metrics | {name: share_metric(parts, hidden_ns, name) for name in shares}


def is_relative(condition: str) -> bool:
    """Whether a condition is about a change."""
    return "+" in condition or "-" in condition


def check_change(analysis: Analysis, baseline: Baseline, condition: str) -> str | None:
    """What has become worse than it may; None if nothing has.

    Times and speeds are compared by their ratio, and a change that chance explains (series.py) is let pass; shares are compared
    by points of the step.

    Raises:
        UsageError: the condition cannot be understood, or there is nothing to compare.
    """
    match = _CONDITION.fullmatch(condition.strip().lower())
    if match is None or match[1] not in PARTS_AND_METRICS:
        raise UsageError(
            f"--fail-on {condition}: against a baseline write a metric, >+ or <-, and a share, as step_ms>+5% or "
            f"steps_per_second<-5%; metrics: {', '.join(METRICS)}"
        )
    name, grows, limit = match[1], match[2][0] == ">", float(match[3]) / 100
    now, before = metric(analysis, name), baseline.metrics[name]
    described = f"{name} is {value_words(name, now)}, and was {value_words(name, before)}"
    if is_share(name):
        return described if (now - before if grows else before - now) > limit else None
    if before <= 0:
        raise UsageError(f"--baseline {baseline.name}: it contains no steps")
    size = analysis.trace.meta.size
    if size != baseline.size:
        raise UsageError(
            f"--fail-on {condition}: {size} ranks now, {baseline.size} in {baseline.name}: not the same work"
        )
    ratio = _ratio(analysis, baseline, name)
    change = now / before - 1 if grows else 1 - now / before
    if change <= limit or not ratio.is_significant:
        return None
    low, high = ratio.interval
    return f"{described} (ratio of the {ratio.name} steps {low:.2f} to {high:.2f})"


def _ratio(analysis: Analysis, baseline: Baseline, name: str) -> Ratio:
    times = step_times(analysis.facts.steps, analysis.facts.breakdown)
    return compare_samples(baseline.sample, sample_of(times))[STEP_METRICS.get(name, "mean")]
