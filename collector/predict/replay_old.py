"""A step put together anew: the engine of every predicted gain.

The model of a synchronous step: it lasts as long as the own work of the slowest rank, plus a tail in which even that rank waits
for communication.  A change makes parts of the own work or of the tail shorter; the steps are then put together one by one, so
that another rank may become the slowest.

Two things cost more than they seem to.  Communication that hides behind backward still takes cores from it where the processor
moves the bytes: that *contention* is part of the own work, and goes when communication goes.  And a tail is divided by kind: a
latency for each collective, the rest in proportion to its bytes, and negotiation.  Latency and bandwidth are those of the run's
own collectives: the line through their transfer times over bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..model.breakdown import EXPOSED, IDLE
from ..model.facts import Facts

Matrix = np.ndarray
Row = np.ndarray[tuple[int], np.dtype[np.float64]]

CONTENTION: Final = "contention"
"""The part of the own work that is backward waiting for a core which communication has."""

MOVING: Final = (str(Category.COLLECTIVE), str(Category.FUSION))
_BACKWARD: Final = str(Category.BACKWARD)


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCost:
    """What the collectives of a step of one rank cost, on average."""

    latency_ns: float
    """Of one collective, however few bytes it carries."""
    count: float
    nbytes: float
    spent_ns: float
    """Moving bytes, waits for stragglers left out."""

    @property
    def latency_share(self) -> float:
        """How much of the time goes with their number rather than with their bytes."""
        return min(self.latency_ns * self.count / self.spent_ns, 1.0) if self.spent_ns else 0.0


@dataclass(slots=True)
class Replay:
    """A run to which changes are applied.  Arrays are float[rank, step] and float[step], ns."""

    facts: Facts
    work: dict[str, Matrix]
    """Own work by part (PARTS that are not exposed, and CONTENTION)."""
    latency: Row
    """Of the tail: what collectives cost however few bytes they carry."""
    transfer: Row
    negotiation: Row
    cost: CollectiveCost
    contention_latency: float
    """Share of the contention that goes with the number of collectives."""
    before: Row
    """The steps as they were."""

    @property
    def own_work(self) -> Matrix:
        """float[rank, step]."""
        total: Matrix = np.sum(list(self.work.values()), axis=0)
        return total

    @property
    def step(self) -> Row:
        """Duration of each step, ns."""
        total: Row = self.own_work.max(axis=0) + self.latency + self.transfer + self.negotiation
        return total

    @property
    def saved_ns(self) -> Row:
        """How much shorter each step has become."""
        saved: Row = self.before - self.step
        return saved

    def scale_latency(self, factor: float) -> None:
        """Each collective costs so many times what it does however few bytes it carries."""
        self.latency = self.latency * factor
        self.work[CONTENTION] = self.work[CONTENTION] * (1 - self.contention_latency * (1 - factor))

    def scale_transfer(self, factor: float) -> None:
        """Bytes take so many times as long."""
        self.transfer = self.transfer * factor
        self.work[CONTENTION] = self.work[CONTENTION] * (1 - (1 - self.contention_latency) * (1 - factor))

    def scale_communication(self, factor: float) -> None:
        """All that moves bytes takes so many times as long."""
        self.latency, self.transfer = self.latency * factor, self.transfer * factor
        self.work[CONTENTION] = self.work[CONTENTION] * factor

    def scale_negotiation(self, factor: float) -> None:
        """Agreeing on what to reduce takes so many times as long."""
        self.negotiation = self.negotiation * factor

    def scale_work(self, parts: Sequence[str], factor: float, row: int | None = None) -> None:
        """Parts of the own work take so many times as long, on all ranks or in one row."""
        rows = slice(None) if row is None else slice(row, row + 1)
        for part in parts:
            if part in self.work:
                self.work[part][rows] *= factor

    def remove_work(self, part: str, removed_ns: Matrix) -> None:
        """Take some time out of a part of the own work, no more than there is: float[rank, step]."""
        if part in self.work:
            self.work[part] = np.maximum(self.work[part] - removed_ns, 0.0)

    def remove_stragglers(self) -> None:
        """No rank works longer than the median one; of two ranks, than the faster one."""
        own = self.own_work
        typical = np.median(own, axis=0) if len(own) > 2 else own.min(axis=0)  # noqa: PLR2004
        scale = np.minimum(1.0, typical / np.maximum(own, 1.0))
        for part in self.work:
            self.work[part] = self.work[part] * scale

    def overlap_perfectly(self) -> None:
        """What is exposed hides behind what is left of backward."""
        backward = self.work.get(_BACKWARD)
        if backward is None:
            return
        room = np.maximum(backward.max(axis=0) - self.facts.breakdown.hidden_ns.mean(axis=0), 0.0)
        exposed = self.latency + self.transfer
        left = np.maximum(exposed - room, 0.0)
        scale = np.divide(left, exposed, out=np.zeros_like(exposed), where=exposed > 0)
        self.latency, self.transfer = self.latency * scale, self.transfer * scale


def replay(facts: Facts) -> Replay:
    """The run as it was, ready to be changed."""
    breakdown = facts.breakdown
    work = {name: values.astype(float) for name, values in breakdown.parts_ns.items() if name not in EXPOSED}
    if breakdown.on_device:
        # A device that is idle waits for its own host.
        work[IDLE] = breakdown.parts_ns[IDLE].astype(float)
    own = np.sum(list(work.values()), axis=0)
    tail = np.maximum(breakdown.step_ns.max(axis=0) - own.max(axis=0), 0.0)
    contention = facts.contention_ns
    work[_BACKWARD] = work[_BACKWARD] - contention
    work[CONTENTION] = contention
    moving = np.sum([facts.on_critical_rank(part) for part in MOVING], axis=0)
    asking_parts = [str(Category.NEGOTIATE), str(Category.QUEUE), *([] if breakdown.on_device else [IDLE])]
    asking = np.sum([facts.on_critical_rank(part) for part in asking_parts], axis=0)
    share = np.divide(moving, moving + asking, out=np.ones_like(moving), where=moving + asking > 0)
    cost = cost_of_collectives(facts)
    made = Replay(
        facts=facts,
        work=work,
        latency=tail * share * cost.latency_share,
        transfer=tail * share * (1 - cost.latency_share),
        negotiation=tail * (1 - share),
        cost=cost,
        contention_latency=cost.latency_share,
        before=np.zeros(0),
    )
    made.before = made.step
    return made


def cost_of_collectives(facts: Facts) -> CollectiveCost:
    """The line through transfer times over bytes, from the run's own collectives."""
    table = facts.in_steps(facts.collectives)
    table = table[(table["kind"] != "barrier") & (table["nbytes"] >= 0)]
    if table.empty or not facts.steps.count:
        return CollectiveCost(latency_ns=0.0, count=0.0, nbytes=0.0, spent_ns=0.0)
    per_step = facts.steps.count * len(facts.ranks)
    by_size = table.groupby("nbytes")["transfer_ns"].median()
    sizes, medians = by_size.index.to_numpy(dtype=float), by_size.to_numpy(dtype=float)
    latency = float(medians.min())
    if len(sizes) > 2 and sizes.max() > 4 * max(sizes.min(), 1.0):  # noqa: PLR2004  a line needs some distance
        slope, intercept = np.polyfit(sizes, medians, 1)
        if slope > 0:
            latency = float(np.clip(intercept, 0.0, medians.min()))
    return CollectiveCost(
        latency_ns=latency,
        count=len(table) / per_step,
        nbytes=float(table["nbytes"].sum()) / per_step,
        spent_ns=float(table["transfer_ns"].sum()) / per_step,
    )
