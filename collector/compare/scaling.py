"""How much of N ranks' work arrives, against a run of one rank: the scaling efficiency, and what takes the rest."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..model.breakdown import PARTS
from ..model.step_times import mean_step, step_times

#: No rank does more work beside others than alone; a little more is chance.
MAX_EFFICIENCY: Final = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """A run against a run of one rank, by mean steps."""

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

    @property
    def is_comparable(self) -> bool:
        """Whether the single run can be the measure of this one."""
        return self.efficiency <= MAX_EFFICIENCY


def scaling(analysis: Analysis, single: Analysis) -> Scaling:
    """Compare mean steps, which are what throughput is made of.

    Raises:
        UsageError: one of the runs has no steps, or `single` has several ranks.
    """
    if single.trace.meta.size > 1:
        raise UsageError(f"--single: that run has {single.trace.meta.size} ranks; give a run of one")
    alone = step_times(single.facts.steps, single.facts.breakdown)
    together = step_times(analysis.facts.steps, analysis.facts.breakdown)
    if not alone.count or not together.count:
        raise UsageError("--single needs steps in both runs")
    work = _input(analysis) / _input(single) if _input(single) and _input(analysis) else 1.0
    before, after = mean_step(single.facts.breakdown, alone), mean_step(analysis.facts.breakdown, together)
    lost = {part: round(after[part] - work * before[part]) for part in PARTS}
    return Scaling(
        ranks=max(analysis.trace.meta.size, 1),
        single_step_ns=alone.mean_ns,
        step_ns=together.mean_ns,
        work_ratio=work,
        efficiency=work * alone.mean_ns / max(together.mean_ns, 1),
        lost_ns=dict(sorted(((part, ns) for part, ns in lost.items() if ns > 0), key=lambda item: -item[1])),
    )


def _input(analysis: Analysis) -> float:
    elements = analysis.facts.cpu.input_elements
    return float(np.median(elements)) if elements.size else 0.0


def describe_limits(found: Scaling) -> str | None:
    """Why the efficiency is not to be believed; None if it is."""
    if found.is_comparable:
        return None
    return (
        f"an efficiency of {found.efficiency:.0%} is not scaling: a rank does not work faster with others than alone. The "
        "single run is not comparable: it had another batch size, other code, or a busier or slower machine"
    )


def describe_scaling(found: Scaling) -> dict[str, Any]:
    """For the machine-readable report; times in ns."""
    return {
        "ranks": found.ranks,
        "single_step_ns": found.single_step_ns,
        "step_ns": found.step_ns,
        "work_ratio": round(found.work_ratio, 4),
        "efficiency": round(found.efficiency, 4),
        "speed_up": round(found.speed_up, 4),
        "comparable": found.is_comparable,
        "lost_ns": found.lost_ns,
    }
