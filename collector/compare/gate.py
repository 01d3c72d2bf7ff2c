"""Conditions that a run must not fulfil, for CI (`tl-analyze --fail-on`)."""

import re
from typing import Final

import numpy as np

from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..model.breakdown import EXPOSED, IDLE, PARTS
from ..reports.report import step_durations, typical_step

_CONDITION: Final = re.compile(r"([a-z0-9_]+)\s*(>=|>|<=|<)\s*(\d+(?:\.\d+)?)\s*(%?)")

#: What conditions may be about, beside the parts of a step.
METRICS: Final = ("exposed_comm", "hidden_comm", "step_ms", "p95_ms", "gain")


PARTS_AND_METRICS: Final = frozenset({*METRICS, *PARTS})


def parse_condition(condition: str) -> tuple[str, str, float]:
    """Metric, sign, and bound (ms, or a share) of a condition.

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
    in_ms = name.endswith("_ms")
    if in_ms == bool(percent):
        unit = "in milliseconds, without %" if in_ms else "as a share, with %"
        raise UsageError(f"--fail-on {condition}: {name} is given {unit}")
    return name, sign, float(limit) / (1 if in_ms else 100)


def check(analysis: Analysis, condition: str) -> str | None:
    """What a run has that it must not have; None if the condition does not hold.

    Args:
        condition: a metric, `>` or `<`, and a number: `exposed_comm>20%` (share of the median step), `step_ms>120`,
            `gain>10%` (of the best finding), or a part of the step, as `data>5%`.

    Raises:
        UsageError: the condition cannot be understood.
    """
    name, sign, bound = parse_condition(condition)
    in_ms = name.endswith("_ms")
    value = metric(analysis, name)
    holds = {">": value > bound, ">=": value >= bound, "<": value < bound, "<=": value <= bound}[sign]
    if not holds:
        return None
    return f"{name} is {value:.1f} ms" if in_ms else f"{name} is {value:.1%}"


def metric(analysis: Analysis, name: str) -> float:
    """A metric: in ms, or as a share of the median step."""
    durations = step_durations(analysis)
    if not len(durations):
        raise UsageError("--fail-on needs steps, and this trace has none")
    if name == "step_ms":
        return float(np.median(durations)) / 1e6
    if name == "p95_ms":
        return float(np.quantile(durations, 0.95)) / 1e6
    if name == "gain":
        return analysis.findings[0].predicted_gain if analysis.findings else 0.0
    parts = typical_step(analysis)
    total = max(sum(parts.values()), 1)
    if name == "exposed_comm":
        return sum(parts[part] for part in EXPOSED if part != IDLE) / total
    if name == "hidden_comm":
        return float(np.median(analysis.facts.breakdown.hidden_ns)) / total
    return parts[name] / total
