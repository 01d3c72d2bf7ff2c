"""A job's work, by rank and step, noise included: what the simulation plays.

Faults are added here in plain numbers, so that a run with a fault and one without differ in that fault alone.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .jobs import Job
from .noise import Floats, Noise

Ints = NDArray[np.int64]

#: What the training thread does in a step.
ITEMS: Final = ("dataset", "collate", "loop", "forward", "backward", "optimizer", "checkpoint", "validation", "garbage")

#: Collectives of a step whose noise is drawn; later ones start anew.
_DRAWN: Final = 64


@dataclass(slots=True)
class Plan:
    """Work in ns by item, as arrays of ranks and steps."""

    job: Job
    noise: Noise
    busy: dict[str, Floats]
    """Time on a core."""
    blocked: dict[str, Floats]
    """Time asleep: waiting for a disk, another process, a lock."""
    starved: Floats
    """How much longer everything on a core takes, for want of one: 0.5 means half as long again."""
    elements: Ints
    """Of each batch."""
    wire: Floats
    """Factors of the duration of collectives: steps and collectives of a step."""

    @property
    def shape(self) -> tuple[int, int]:
        """Ranks and steps."""
        return self.job.ranks, self.job.steps

    def base_ns(self, item: str) -> int:
        """What an item takes in this job without noise."""
        return int(getattr(self.job, f"{item}_ns", 0))

    def add(self, item: str, amount_ns: Floats, *, is_blocked: bool) -> None:
        """More work of an item, with noise of its own."""
        noisy = amount_ns * self.noise.factors(f"extra {item}", self.shape, 0.04)
        part = self.blocked if is_blocked else self.busy
        part[item] = part[item] + noisy


def make_plan(job: Job, noise: Noise) -> Plan:
    """The job's own work."""
    shape = job.ranks, job.steps
    common = noise.factors("common", (1, job.steps), job.common_sigma)
    warm_up = np.ones(job.steps)
    warm_up[: job.warm_up] = np.linspace(job.warm_up_factor, 1 + (job.warm_up_factor - 1) / 3, job.warm_up)
    busy, blocked = {}, {}
    for item in ITEMS:
        amount = float(getattr(job, f"{item}_ns", 0))
        own = noise.factors(item, shape, job.own_sigma)
        shared = common if item in {"forward", "backward"} else 1.0
        busy[item] = amount * own * shared * (warm_up if item in {"forward", "backward", "optimizer"} else 1.0)
        blocked[item] = np.zeros(shape)
    return Plan(
        job=job,
        noise=noise,
        busy=busy,
        blocked=blocked,
        starved=np.zeros(shape),
        elements=np.full(shape, job.elements, np.int64),
        wire=noise.factors("collective", (job.steps + 1, _DRAWN), 0.05),
    )
