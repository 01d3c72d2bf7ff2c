"""What can be wrong with a job, as a change of the job and of its plan.

A fault first makes the job one that it can happen to (`prepare`: many layers, a loader with workers), which is no fault yet and
stays when the fault is taken away; then it spoils the job (`spoil_job`) or its work by rank and step (`spoil_plan`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from .jobs import Job
from .noise import Floats, Noise
from .plan import Plan

ALWAYS, EVERY, WINDOW, GROWING, IN_TURN, BURSTS = "always", "every k-th", "window", "growing", "in turn", "bursts"
#: Bursts in the same steps on all ranks; those of `BURSTS` come to each rank by its own luck.
SHARED_BURSTS = "bursts in common"
#: In how many of the steps a burst is.
_BURST_SHARE: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault of one job."""

    kind: str
    share: float
    """About how much of the step it takes."""
    ranks: tuple[int, ...]
    is_everywhere: bool
    """Whether `ranks` are all."""
    pattern: str = ALWAYS
    every: int = 1
    window: tuple[float, float] = (0.0, 1.0)
    """As shares of the run."""
    is_blocked: bool = False

    def amount_ns(self, job: Job) -> float:
        """What it adds to a step on average."""
        return self.share / (1 - self.share) * job.work_ns

    def weights(self, job: Job, noise: Noise) -> Floats:
        """How much of the amount falls on each rank and step; 1 on average where the fault is."""
        weights = np.zeros((job.ranks, job.steps))
        steps = np.arange(job.steps)
        here = list(self.ranks)
        if self.pattern == ALWAYS:
            weights[here] = 1
        elif self.pattern == EVERY:
            weights[here] = np.where(steps % self.every == self.every - 1, self.every, 0)
        elif self.pattern == WINDOW:
            first, last = (int(part * job.steps) for part in self.window)
            weights[here] = np.where((steps >= first) & (steps < last), job.steps / max(last - first, 1), 0)
        elif self.pattern == GROWING:
            weights[here] = 2 * steps / job.steps
        elif self.pattern == IN_TURN:
            for position, rank in enumerate(here):
                weights[rank] = steps % len(here) == position
        elif self.pattern == SHARED_BURSTS:
            chance = noise.generator(f"bursts {self.kind}").random(job.steps)
            weights[here] = np.where(chance < _BURST_SHARE, 1 / _BURST_SHARE, 0)
        else:
            chance = noise.generator(f"bursts {self.kind}").random(weights.shape)
            weights[here] = np.where(chance < _BURST_SHARE, 1 / _BURST_SHARE, 0)[here]
        return weights

    @property
    def changes_ranks(self) -> bool:
        """Whether several ranks are slow, each at other times: in each step the others wait for whom it hits."""
        return len(self.ranks) > 1 and self.pattern in {IN_TURN, BURSTS}

    def describe(self) -> str:
        """In a few words.

        >>> Fault(kind="slow-forward", share=0.3, ranks=(1,), is_everywhere=False, pattern=EVERY, every=5).describe()
        'slow-forward 30% of ranks 1, every 5th step'
        """
        ranks = "all ranks" if self.is_everywhere else f"ranks {', '.join(map(str, self.ranks))}"
        pattern = {ALWAYS: "", EVERY: f", every {self.every}th step"}.get(self.pattern, f", {self.pattern}")
        return f"{self.kind} {self.share:.0%} of {ranks}{pattern}{', blocked' if self.is_blocked else ''}"


JobChange = Callable[[Job, Fault], Job]
PlanChange = Callable[[Plan, Fault], None]


def _same(job: Job, fault: Fault) -> Job:
    del fault
    return job


def _nothing(plan: Plan, fault: Fault) -> None:
    del plan, fault


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of fault: what it does, and what a diagnosis may call it."""

    everywhere: str
    """Class when all ranks have it, "" where that is no fault that a trace can show."""
    somewhere: str = ""
    """Class when some ranks have it, "" if it is always the job's."""
    causes: tuple[str, ...]
    """Accepted names of the cause, without "periodic-" in front and "-on-some-ranks" behind."""
    causes_everywhere: tuple[str, ...] = ()
    """Also accepted when all ranks have it."""
    prepare: JobChange = _same
    spoil_job: JobChange = _same
    spoil_plan: PlanChange = _nothing
    patterns: tuple[str, ...] = (ALWAYS,)
    may_block: bool = False
    needs_trace_of_time: bool = False
    """On all ranks it shows only if it comes and goes, or blocks: a model that is always slow is just large."""
    needs_peers: bool = False
    """A job of one rank cannot have it."""
    names_ranks: bool = True
    """Whether the ranks are part of the answer."""
    max_share: float = 0.8
