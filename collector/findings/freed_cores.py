"""What a change is worth besides where ranks share cores: those that it frees are the other ranks'.

The replay leaves what ranks wait for cores as it is.  Of a host with fewer cores than ranks, and nothing else that takes them,
all of that waiting is for each other: if a share of what they run goes, so does that share of it, at least.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..facts import Facts
from ..predict.change import Change
from .base import Finding
from .cores import with_cores
from .order import CIRCUMSTANCES, ONLY_WHEN

#: They speak of waiting for cores themselves, or only of moments.
_WITHOUT: Final = CIRCUMSTANCES | ONLY_WHEN | {"starved-rank", "too-many-threads", "interpreter-lock"}
#: Why a rank works longer: it runs more.  One that is blocked frees nothing.
_RUNS_MORE: Final = frozenset({"", "slow-processor", "uneven-batches", "costly-settings"})


def with_freed_cores(facts: Facts, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those that make the ranks run less with what that gives to ranks that wait for cores."""
    load = facts.host_load
    if facts.replay is None or not facts.all_starved or load is None or load.takes_cores:
        return list(findings)
    if load.cores_per_rank is None or load.cores_per_rank >= 1:
        return list(findings)
    return [_with_freed_cores(facts, finding) for finding in findings]


def _with_freed_cores(facts: Facts, finding: Finding) -> Finding:
    outcome, why = finding.outcome, finding.evidence.get("root_cause", {})
    if outcome is None or finding.class_ == "communication" or finding.cause in _WITHOUT:
        return finding
    if finding.class_ == "straggler" and why.get("is", "") not in _RUNS_MORE:
        return finding
    cores, _ = with_cores(facts, freed_share(facts, outcome.change))
    if cores is None:
        return finding
    more = facts.outcome(outcome.change & cores)
    gained_ns = np.maximum(more.saved_ns - facts.outcome(outcome.change).saved_ns, 0.0)
    more = facts.outcome_of(outcome.saved_ns + gained_ns, more.change)
    return replace(finding, outcome=more, predicted_gain=more.gain, gain_interval=more.interval)


def freed_share(facts: Facts, change: Change) -> float:
    """How much of all that the training threads run a change takes away, 0 to 1."""
    running = facts.cpu.running_ns
    total = sum(float(ran.sum()) for ran in running.values())
    freed = sum(
        float(((1 - np.broadcast_to(np.asarray(factor, float), running[part].shape)) * running[part]).sum())
        for part, factor in change.work.items()
        if part in running
    )
    return float(np.clip(freed / max(total, 1.0), 0.0, 1.0))
