"""What changed between two runs, and whether that is more than chance."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..analysis import Analysis
from ..model.breakdown import PARTS
from ..reports.report import step_durations, typical_step

SCHEMA: Final = "tlkit.diff/1"

_RESAMPLES: Final = 2000
#: Changes of less than this share of the step are not worth a line.
LEAST_RATIO: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Of the median step, or of a part of it; ns."""

    name: str
    before_ns: int
    after_ns: int

    @property
    def difference_ns(self) -> int:
        """Positive if it takes longer now."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs, side by side."""

    step: Change
    ratio: float
    """The median step now over the one before."""
    ratio_interval: tuple[float, float]
    """95 %, by resampling steps."""
    significant: bool
    """Whether 1 lies outside."""
    parts: tuple[Change, ...]
    """Largest change first."""
    findings_gone: tuple[str, ...]
    findings_new: tuple[str, ...]


def compare(before: Analysis, after: Analysis) -> Comparison:
    """Compare the typical steps of two runs.

    The interval is a block bootstrap of the ratio of medians: whole blocks of neighbouring steps are drawn, since steps that
    follow each other resemble each other (Künsch 1989, "The jackknife and the bootstrap for general stationary observations").
    """
    first, second = step_durations(before), step_durations(after)
    step = Change(name="step", before_ns=_median(first), after_ns=_median(second))
    interval = ratio_interval(first, second)
    old, new = typical_step(before), typical_step(after)
    parts = sorted(
        (Change(name=part, before_ns=old[part], after_ns=new[part]) for part in PARTS if old[part] or new[part]),
        key=lambda change: -abs(change.difference_ns),
    )
    had, has = _causes(before), _causes(after)
    return Comparison(
        step=step,
        ratio=step.after_ns / max(step.before_ns, 1),
        ratio_interval=interval,
        significant=not interval[0] <= 1 <= interval[1],
        parts=tuple(parts),
        findings_gone=tuple(sorted(had - has)),
        findings_new=tuple(sorted(has - had)),
    )


def _median(durations: np.ndarray) -> int:
    return int(np.median(durations)) if len(durations) else 0


def _causes(analysis: Analysis) -> set[str]:
    return {
        f"{finding.class_}: {finding.cause}"
        for finding in analysis.findings
        if finding.predicted_gain > LEAST_RATIO * 5
    }


def ratio_interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """95 % interval of the ratio of medians, `second` over `first`, by resampling blocks of steps."""
    if len(first) < 2 or len(second) < 2:  # noqa: PLR2004  nothing to resample
        return 0.0, float("inf")
    random = np.random.default_rng(0)
    ratios = _resampled(second, random) / np.maximum(_resampled(first, random), 1.0)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _resampled(durations: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Medians of resampled runs."""
    count = len(durations)
    block = max(1, round(count ** (1 / 3)))
    starts = random.integers(0, count - block + 1, size=(_RESAMPLES, -(-count // block)))
    rows = (starts[:, :, None] + np.arange(block)).reshape(_RESAMPLES, -1)[:, :count]
    medians: np.ndarray = np.median(durations[rows], axis=1)
    return medians


def make_diff(comparison: Comparison, before: Analysis, after: Analysis) -> dict[str, Any]:
    """The comparison as JSON can say it; times in ns."""

    def change(item: Change) -> dict[str, Any]:
        return {"before_ns": item.before_ns, "after_ns": item.after_ns, "difference_ns": item.difference_ns}

    low, high = comparison.ratio_interval
    return {
        "schema": SCHEMA,
        "before": list(before.trace.meta.files),
        "after": list(after.trace.meta.files),
        "steps": {"before": before.facts.steps.count, "after": after.facts.steps.count},
        "step": change(comparison.step),
        "ratio": round(comparison.ratio, 4),
        "ratio_interval": [round(low, 4), round(high, 4) if np.isfinite(high) else None],
        "significant": comparison.significant,
        "parts": {item.name: change(item) for item in comparison.parts},
        "findings_gone": list(comparison.findings_gone),
        "findings_new": list(comparison.findings_new),
    }
