"""Conditions that a run must not fulfil, for CI (`tl-analyze --fail-on`)."""

import re
from typing import Final

from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..model.breakdown import EXPOSED, IDLE, PARTS
from ..model.step_times import StepTimes, mean_step, step_times

_CONDITION: Final = re.compile(r"([a-z0-9_]+)\s*(>=|>|<=|<)\s*(\d+(?:\.\d+)?)\s*(%?)")

#: Statistics of the steps (series.STATISTICS) that metrics in ms are about; `step_ms` is what throughput is made of.
STEP_METRICS: Final = {"step_ms": "mean", "step_median_ms": "median", "step_p95_ms": "p95", "p95_ms": "p95"}
#: The mean again, as throughput.
STEPS_PER_SECOND: Final = "steps_per_second"

#: What conditions may be about, beside the parts of a step.
METRICS: Final = (*STEP_METRICS, STEPS_PER_SECOND, "exposed_comm", "hidden_comm", "gain")

PARTS_AND_METRICS: Final = frozenset({*METRICS, *PARTS})


def parse_condition(condition: str) -> tuple[str, str, float]:
    """Metric, sign, and bound (ms, steps a second, or a share) of a condition.

    Raises:
        UsageError: it cannot be understood.
    """
    match = _CONDITION.fullmatch(condition.strip().lower())
    known = ", ".join((*METRICS, *PARTS))
    if match is None or match[1] not in PARTS_AND_METRICS:
        raise UsageError(
            f"--fail-on {condition}: write a metric, > or <, and a number, as exposed_comm>20%; metrics: {known}"
        )
    name, sign, limit, percent = match.groups()
    if is_share(name) != bool(percent):
        unit = "as a share, with %" if is_share(name) else f"in {_unit(name)}, without %"
        raise UsageError(f"--fail-on {condition}: {name} is given {unit}")
    return name, sign, float(limit) / (100 if is_share(name) else 1)


def is_share(name: str) -> bool:
    """Whether a metric is a share, and no time or speed."""
    return name not in STEP_METRICS and name != STEPS_PER_SECOND


def _unit(name: str) -> str:
    return "milliseconds" if name in STEP_METRICS else "steps a second"


def value_words(name: str, value: float) -> str:
    """A metric with its unit."""
    if is_share(name):
        return f"{value:.1%}"
    return f"{value:.1f} ms" if name in STEP_METRICS else f"{value:.3g} steps/s"


def check(analysis: Analysis, condition: str) -> str | None:
    """What a run has that it must not have; None if the condition does not hold.

    Args:
        condition: a metric, `>` or `<`, and a number: `exposed_comm>20%` (share of the mean step), `step_ms>120` (the mean
            step), `steps_per_second<8`, `gain>10%` (of the best finding), or a part of the mean step, as `data>5%`.

    Raises:
        UsageError: the condition cannot be understood.
    """
    name, sign, bound = parse_condition(condition)
    value = metric(analysis, name)
    holds = {">": value > bound, ">=": value >= bound, "<": value < bound, "<=": value <= bound}[sign]
    return f"{name} is {value_words(name, value)}" if holds else None


def metric(analysis: Analysis, name: str) -> float:
    """A metric: in ms, in steps a second, or as a share of the mean step."""
    breakdown = analysis.facts.breakdown
    times = step_times(analysis.facts.steps, breakdown)
    if not times.count:
        raise UsageError("--fail-on needs steps, and this trace has none")
    if name == "gain":
        return max((finding.predicted_gain for finding in analysis.findings), default=0.0)
    if name in STEP_METRICS or name == STEPS_PER_SECOND:
        return step_metric(times, name)
    return share_metric(mean_step(breakdown, times), float(breakdown.hidden_ns.mean()), name)


def step_metric(times: StepTimes, name: str) -> float:
    """A metric of the steps' durations."""
    if name == STEPS_PER_SECOND:
        return times.steps_per_second
    return float({"mean": times.mean_ns, "median": times.median_ns, "p95": times.p95_ns}[STEP_METRICS[name]]) / 1e6


def share_metric(parts_ns: dict[str, int], hidden_ns: float, name: str) -> float:
    """A metric of the parts of the mean step."""
    total = max(sum(parts_ns.values()), 1)
    if name == "exposed_comm":
        return sum(parts_ns[part] for part in EXPOSED if part != IDLE) / total
    if name == "hidden_comm":
        return hidden_ns / total
    return parts_ns[name] / total
