"""What changed between two runs, and whether that is more than chance."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..analysis import Analysis
from ..findings import WORTH_RATIO
from ..model.breakdown import PARTS
from ..model.step_times import StepTimes, describe_skew, mean_step, step_times
from .limits import do_the_same, find_limits, show_the_same
from .series import Ratio, Sample, compare_samples

SCHEMA: Final = "tlkit.diff/2"

#: Changes of less than this share of the step are not worth a line.
MIN_CHANGE_RATIO: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Of a part of the mean step; ns."""

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

    before: StepTimes
    after: StepTimes
    mean: Ratio
    """Its inverse is the change of throughput."""
    median: Ratio
    p95: Ratio
    parts: tuple[Change, ...]
    """Of the mean step, so that they sum to its change; largest change first.  Empty where the traces show different parts."""
    findings_gone: tuple[str, ...]
    findings_new: tuple[str, ...]
    is_same_job: bool
    """Whether both runs have as many ranks."""
    notes: tuple[str, ...]
    """What a reader has to know to take the numbers for what they are."""

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        """The one that decides first comes first."""
        return self.mean, self.median, self.p95

    @property
    def shown_parts(self) -> tuple[Change, ...]:
        """Changes that are worth a line."""
        least = MIN_CHANGE_RATIO * max(self.before.mean_ns, 1)
        return tuple(part for part in self.parts if abs(part.difference_ns) >= least)

    def slower(self, allowed: float = 0.0) -> tuple[Ratio, ...]:
        """What has grown by more than `allowed` (0.05: 5 %) and by more than chance."""
        return tuple(ratio for ratio in self.ratios if ratio.is_slower(allowed))


def compare(before: Analysis, after: Analysis) -> Comparison:
    """Compare the steps of two runs: mean, median and tail (series.py), and the parts of the mean step."""
    times = [step_times(analysis.facts.steps, analysis.facts.breakdown) for analysis in (before, after)]
    ratios = compare_samples(*map(sample_of, times))
    parts: list[Change] = []
    if show_the_same(before, after):
        old, new = (mean_step(run.facts.breakdown, time) for run, time in zip((before, after), times, strict=True))
        changes = (Change(name=part, before_ns=old[part], after_ns=new[part]) for part in PARTS)
        parts = sorted(
            (change for change in changes if change.before_ns or change.after_ns),
            key=lambda change: -abs(change.difference_ns),
        )
    had, has = _causes(before), _causes(after)
    return Comparison(
        before=times[0],
        after=times[1],
        mean=ratios["mean"],
        median=ratios["median"],
        p95=ratios["p95"],
        parts=tuple(parts),
        findings_gone=tuple(sorted(had - has)),
        findings_new=tuple(sorted(has - had)),
        is_same_job=do_the_same(before, after),
        notes=(*find_limits(before, after), *_skew(*times)),
    )


def sample_of(times: StepTimes) -> Sample:
    """The steps of a run for a comparison."""
    return Sample(durations_ns=times.durations_ns.astype(float), checkpoint_ns=times.checkpoint_ns.astype(float))


def _skew(before: StepTimes, after: StepTimes) -> Iterator[str]:
    for when, times in (("before", before), ("now", after)):
        said = describe_skew(times)
        if said is not None:
            yield f"{when}, {said}"


def _causes(analysis: Analysis) -> set[str]:
    return {
        f"{finding.class_}: {finding.cause}" for finding in analysis.findings if finding.predicted_gain > WORTH_RATIO
    }


def make_diff(comparison: Comparison, before: Analysis, after: Analysis) -> dict[str, Any]:
    """The comparison as JSON can say it; times in ns."""

    def ratio(item: Ratio) -> dict[str, Any]:
        low, high = item.interval
        return {
            "before_ns": round(item.before_ns),
            "after_ns": round(item.after_ns),
            "ratio": round(item.ratio, 4),
            "ratio_interval": [round(low, 4), round(high, 4) if np.isfinite(high) else None],
            "significant": item.is_significant,
        }

    return {
        "schema": SCHEMA,
        "before": list(before.trace.meta.files),
        "after": list(after.trace.meta.files),
        "steps": {"before": comparison.before.count, "after": comparison.after.count},
        "steps_per_second": {
            "before": round(comparison.before.steps_per_second, 6),
            "after": round(comparison.after.steps_per_second, 6),
        },
        "mean": ratio(comparison.mean),
        "median": ratio(comparison.median),
        "p95": ratio(comparison.p95),
        "same_job": comparison.is_same_job,
        "parts": {
            item.name: {
                "before_ns": item.before_ns,
                "after_ns": item.after_ns,
                "difference_ns": item.difference_ns,
            }
            for item in comparison.parts
        },
        "findings_gone": list(comparison.findings_gone),
        "findings_new": list(comparison.findings_new),
        "notes": list(comparison.notes),
    }
