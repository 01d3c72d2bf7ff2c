"""How much of N ranks' work arrives, against a run of one rank: the scaling efficiency, and what takes the rest."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..model.breakdown import PARTS
from ..reports.report import step_durations, typical_step


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """A run against a run of one rank."""

    ranks: int
    single_step_ns: int
    step_ns: int
    work_ratio: float
    """Input of a rank's step over the input of the single rank's; 1 if it is not recorded."""
    efficiency: float
    """Work a second and rank over work a second of the single rank."""
    lost_ns: dict[str, int]
    """By part: how much longer a step takes than the single rank's for the same work; largest first."""

    @property
    def speed_up(self) -> float:
        """Work a second of all ranks over that of the single one."""
        return self.efficiency * self.ranks


def scaling(analysis: Analysis, single: Analysis) -> Scaling:
    """Compare median steps.

    Raises:
        UsageError: one of the runs has no steps, or `single` has several ranks.
    """
    if single.trace.meta.size > 1:
        raise UsageError(f"--single: that run has {single.trace.meta.size} ranks; give a run of one")
    alone, together = step_durations(single), step_durations(analysis)
    if not len(alone) or not len(together):
        raise UsageError("--single needs steps in both runs")
    work = _input(analysis) / _input(single) if _input(single) and _input(analysis) else 1.0
    single_ns, step_ns = int(np.median(alone)), int(np.median(together))
    before, after = typical_step(single), typical_step(analysis)
    lost = {part: round(after[part] - work * before[part]) for part in PARTS}
    return Scaling(
        ranks=max(analysis.trace.meta.size, 1),
        single_step_ns=single_ns,
        step_ns=step_ns,
        work_ratio=work,
        efficiency=work * single_ns / max(step_ns, 1),
        lost_ns=dict(sorted(((part, ns) for part, ns in lost.items() if ns > 0), key=lambda item: -item[1])),
    )


def _input(analysis: Analysis) -> float:
    elements = analysis.facts.cpu.input_elements
    return float(np.median(elements)) if elements.size else 0.0


def describe_scaling(found: Scaling) -> dict[str, Any]:
    """For the machine-readable report; times in ns."""
    return {
        "ranks": found.ranks,
        "single_step_ns": found.single_step_ns,
        "step_ns": found.step_ns,
        "work_ratio": round(found.work_ratio, 4),
        "efficiency": round(found.efficiency, 4),
        "speed_up": round(found.speed_up, 4),
        "lost_ns": found.lost_ns,
    }
