"""Ranks that wait for cores: those that other processes have, or their own threads, of which there are too many."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from ...timeline.model.step_loads import METERED
from ...timeline.vocabulary import DATA_FETCH, Category, LaneKind
from ..facts import Facts, Outcome
from ..model.arrays import Matrix
from ..model.crowding import Binding, Crowd
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding, promise
from .interpreter_lock import busy_threads, of_other_threads

#: So much is starved on a machine that does what it should, as a share of the phases.
ORDINARY_STARVED_RATIO: Final = 0.05
#: What has so much of the cores that others have is told as who has them.
MOST_OF_IT: Final = 0.6
_BIND_APART: Final = (
    "Bind each rank to cores of its own, by its number on the host (local rank), or to none: look for what sets the affinity: "
    "os.sched_setaffinity in the script, taskset, numactl, a container's cpuset, mpirun --bind-to, srun --cpu-bind, and a "
    "variable for that number which this launcher does not set."
)
#: Phases whose operators several threads compute.
_COMPUTED: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)))


class StarvedOfCores:
    """Other processes take the cores that the training threads need."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if it touches all ranks (one rank alone is a straggler)."""
        if facts.replay is None or not facts.cpu.knows_starved or are_in_their_own_way(facts):
            return []
        change, total = with_cores(facts)
        if change is None:
            return []
        outcome = facts.outcome(change)
        if outcome.gain < WORTH_RATIO / 2:
            return []
        own, threads_ns = busy_threads(facts)
        return [
            promise(
                outcome,
                class_="compute",
                cause="starved-of-cores",
                ranks=facts.ranks,
                confidence=0.8,
                evidence={
                    "is_estimated": facts.cpu.is_estimated,
                    "starved_ns": round(float(total.mean())),
                    "by_phase_ns": {
                        str(category): round(float(facts.cpu.starved_ns[str(category)].mean())) for category in METERED
                    },
                    "busy_threads": {"ranks": list(own), "mean_ns": round(threads_ns)},
                    **_binding(facts),
                },
                remedy=_BIND_APART if bindings_of_all(facts) else _look_at_threads(facts, own) + _free_cores(facts),
                sentence=(
                    f"{_bound(facts) or _few(facts)}In each {milliseconds(facts.mean_step_ns)} step the training threads wait "
                    f"{milliseconds(float(total.mean()))} for a core that {_who_has_cores(facts)}, and communication "
                    f"waits in the same way: {milliseconds(outcome.mean_saved_ns)} of the step in total."
                    + _threads(facts, own, threads_ns)
                    + _how_it_is_known(facts)
                ),
            )
        ]


def with_cores(facts: Facts, share: float = 1.0) -> tuple[Change | None, Matrix]:
    """The change that gives the training threads the cores that other processes have, and what they wait for those.

    Args:
        facts: whose counters tell how long threads were ready to run and had no core.
        share: that of the other processes' cores which is given.

    Returns:
        The change, None if it is not worth a word; and float[rank, step], ns.
    """
    total = np.zeros(facts.breakdown.step_ns.shape)
    work: dict[str, Any] = {}
    for category in METERED:
        part = str(category)
        starved = facts.cpu.starved_ns[part].astype(float)
        if category is Category.BACKWARD:
            starved = np.maximum(starved - facts.contention_ns, 0.0)
        # Where all ranks lack cores, each at moments of its own, stragglers are sought without that (peers' work).
        common = starved if facts.all_starved else np.broadcast_to(starved.min(axis=0), starved.shape)
        beyond = share * np.maximum(common - ORDINARY_STARVED_RATIO * facts.part(part), 0.0)
        total += beyond
        work[part] = removed(facts.part(part).astype(float), beyond)
    phases_ns = sum(float(facts.part(str(category)).sum()) for category in METERED)
    # What is not metered, the loop and the threads that communicate, fares no better.
    left = 1 - float(total.sum()) / max(phases_ns, 1.0)
    if left > 1 - share * WORTH_RATIO / 2:
        return None, total
    work[str(Category.OTHER)] = left
    return Change(work=work, latency=left, transfer=left, negotiation=left, contention=left), total


def loaders_share(facts: Facts) -> float:
    """How much of what processes other than the ranks have of the cores is what data loader workers do: 0 to 1.

    Workers that sleep or wait for a disk count as well, since nothing tells that of them: at most what others have.
    """
    load = facts.host_load
    if load is None or not load.takes_cores or load.cores_per_rank is None:
        return 0.0
    spans = facts.in_steps(facts.trace.spans)
    made = spans[(spans["name"] == DATA_FETCH) & (spans["lane_kind"] == str(LaneKind.WORKER))]
    busy = float(made["dur_ns"].sum()) / max(float(facts.breakdown.step_ns.sum()), 1.0) / load.cores_per_rank
    return min(busy / (load.others_ratio or 1.0), 1.0)


def _binding(facts: Facts) -> dict[str, Any]:
    """For the evidence: which ranks are bound to the same cores."""
    return {"bound_together": [asdict(binding) for binding in facts.bindings]} if facts.bindings else {}


def bindings_of_all(facts: Facts) -> list[Binding]:
    """Who is bound to which cores, if every rank is: else other ranks wait for another reason."""
    bound = {rank for binding in facts.bindings for rank in binding.ranks}
    return facts.bindings if bound.issuperset(facts.ranks) else []


def _bound(facts: Facts) -> str:
    bindings = bindings_of_all(facts)
    if not bindings:
        return ""
    told = bindings[0]
    cores = (
        f"core {told.first} alone" if told.cores == 1 else f"the same {told.cores} cores ({told.first} to {told.last})"
    )
    return f"{name_ranks(told.ranks, 0)} are bound to {cores}, of {told.host_cores} that the host has. "


def _who_has_cores(facts: Facts) -> str:
    if bindings_of_all(facts):
        return "another of them has"
    if loaders_share(facts) >= MOST_OF_IT:
        return "the data loaders' workers have"
    if _by_themselves(facts):
        return "another rank uses" if _cores_per_rank(facts) < 1 else "another thread of the ranks uses"
    return "something else uses"


def _few(facts: Facts) -> str:
    """Of ranks that have a host to themselves and are more than its cores."""
    cores = _cores_per_rank(facts)
    if not _by_themselves(facts) or cores >= 1:
        return ""
    return f"The host has {round(1 / cores, 1):g} ranks for each core, and nothing else that takes them. "


def _by_themselves(facts: Facts) -> bool:
    """Whether it is known that nothing but the ranks has much of the cores."""
    load = facts.host_load
    return load is not None and load.others_ratio is not None and not load.takes_cores


def _cores_per_rank(facts: Facts) -> float:
    load = facts.host_load
    return 1.0 if load is None or load.cores_per_rank is None else load.cores_per_rank


def _threads(facts: Facts, ranks: tuple[int, ...], mean_ns: float) -> str:
    """Who among the ranks takes cores by threads that are not the training's."""
    if not ranks:
        return ""
    return f" Other threads of {_processes(facts, ranks)} run for {milliseconds(mean_ns)} of each step."


def _how_it_is_known(facts: Facts) -> str:
    """Of a profile, which counts no processor time (lost_cores)."""
    if not facts.cpu.is_estimated:
        return ""
    return " That is estimated: operators which usually take microseconds take milliseconds now and then."


def _look_at_threads(facts: Facts, ranks: tuple[int, ...]) -> str:
    return f"Find what the other threads of {_processes(facts, ranks)} do (py-spy dump --pid). " if ranks else ""


def _free_cores(facts: Facts) -> str:
    if loaders_share(facts) >= MOST_OF_IT:
        return (
            "Make the dataset's __getitem__ cheaper (caching, cheaper decoding, fewer transforms), or start fewer ranks, loader "
            "workers and OMP_NUM_THREADS than there are cores."
        )
    if _by_themselves(facts):
        return (
            "Start no more ranks on a host than it has cores, and leave some for OMP_NUM_THREADS, loader workers and the threads "
            "that communicate; or use hosts with more cores."
        )
    return (
        "Look with top for what else runs on the hosts and end or move it; or start fewer ranks, loader workers and "
        "OMP_NUM_THREADS than there are cores."
    )


def _processes(facts: Facts, ranks: tuple[int, ...]) -> str:
    if len(ranks) == len(facts.ranks):
        return "the ranks' own processes"
    who = name_ranks(ranks, len(facts.ranks))
    return f"the process{'es' if len(ranks) > 1 else ''} of {who[0].lower()}{who[1:]}"


def are_in_their_own_way(facts: Facts) -> bool:
    """Whether ranks have more threads than cores, and nobody else has as much of these."""
    if facts.breakdown.on_device or not facts.crowds:
        return False
    load = facts.host_load
    if load is None or not load.takes_cores or load.cores_per_rank is None:
        return True
    own = float(of_other_threads(facts).sum()) / max(float(facts.breakdown.step_ns.sum()), 1.0) / load.cores_per_rank
    return own >= (load.others_ratio or 0.0)


class TooManyThreads:
    """Operators are computed by more threads than a rank has cores: they wait for each other, and for cores."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or not facts.cpu.knows_starved or not are_in_their_own_way(facts):
            return []
        outcome, lost_ns = _without_waiting(facts)
        if outcome.gain < WORTH_RATIO / 2:
            return []
        crowds = facts.crowds
        ranks = tuple(rank for rank in facts.ranks if rank in crowds)
        everybody = len(ranks) == len(facts.ranks)
        most = max(crowds.values(), key=lambda crowd: crowd.threads / crowd.cores)
        who = name_ranks(ranks, len(facts.ranks))
        wanted = max(int(most.cores), 1)
        return [
            promise(
                outcome,
                class_="compute" if everybody else "straggler",
                cause="too-many-threads",
                ranks=ranks,
                confidence=0.8,
                evidence={
                    "threads": {str(rank): crowds[rank].threads for rank in ranks},
                    "cores": {str(rank): round(crowds[rank].cores, 2) for rank in ranks},
                    "lost_ns": round(lost_ns),
                },
                remedy=f"OMP_NUM_THREADS={wanted} for each rank, or torch.set_num_threads({wanted}) in the script.",
                sentence=(
                    f"{who} {'computes' if everybody or len(ranks) == 1 else 'compute'} each operator with {most.threads} "
                    f"threads on {_cores(most)}: they wait for cores and for each other, {milliseconds(lost_ns)} of each "
                    f"{milliseconds(facts.mean_step_ns)} step, besides what they spend on waiting."
                ),
            )
        ]


def _cores(crowd: Crowd) -> str:
    return "one core" if crowd.cores <= 1 else f"{crowd.cores:g} cores"


def _without_waiting(facts: Facts) -> tuple[Outcome, float]:
    """Without what ranks wait for cores, and crowded ones are blocked for while they compute; and how long that is (mean, ns)."""
    cpu, is_crowded = facts.cpu, np.array([rank in facts.crowds for rank in facts.ranks])[:, None]
    work: dict[str, Any] = {}
    lost = np.zeros(facts.breakdown.step_ns.shape)
    for part in map(str, METERED):
        took = facts.part(part).astype(float)
        waited = cpu.starved_ns[part].astype(float)
        if part in _COMPUTED and part in cpu.metered:
            blocked = np.maximum(took - cpu.running_ns[part] - cpu.starved_ns[part], 0.0)
            waited = waited + np.where(is_crowded, blocked, 0.0)
        if part == str(Category.BACKWARD):
            waited = np.maximum(waited - facts.contention_ns, 0.0)
        waited = np.minimum(waited, took)
        lost += waited
        work[part] = removed(took, waited)
    phases_ns = sum(float(facts.part(str(category)).sum()) for category in METERED)
    left = 1 - float(lost.sum()) / max(phases_ns, 1.0)
    work[str(Category.OTHER)] = np.minimum(work.get(str(Category.OTHER), 1.0), left)
    change = Change(work=work, latency=left, transfer=left, negotiation=left, contention=left)
    return facts.outcome(change), float(lost.mean())
