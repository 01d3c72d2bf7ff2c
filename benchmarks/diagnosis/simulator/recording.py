"""What a simulated run leaves behind, on true time (ns): the writers of formats add clocks that are off."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Span(NamedTuple):
    """An interval on a lane of a rank; `tid` as in docs/timeline-format.md."""

    name: str
    category: str
    tid: int
    start_ns: int
    end_ns: int
    args: dict[str, Any] | None = None


class Tensor(NamedTuple):
    """A tensor that is to be reduced or sent."""

    name: str
    kind: str
    nbytes: int
    process_set: int
    step: int
    is_gradient: bool = True


class Carried(NamedTuple):
    """A tensor of an executed collective, on one rank."""

    tensor: Tensor
    submitted_ns: int


class Executed(NamedTuple):
    """A collective as one rank executed it."""

    seq: int
    process_set: int
    ranks: tuple[int, ...]
    kind: str
    carried: list[Carried]
    negotiated_ns: int
    start_ns: int
    """Copies included."""
    operation_ns: tuple[int, int]
    """Start and end of the operation itself."""
    end_ns: int
    arrivals_ns: tuple[int, ...]
    """By member: when it had asked for the last of the tensors."""


@dataclass(slots=True)
class RankRecording:
    """One rank's."""

    spans: list[Span] = field(default_factory=list)
    counters: list[tuple[str, int, float]] = field(default_factory=list)
    executed: list[Executed] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of each."""
    worked_ns: int = 0
    """What the training thread was at work, of the steady steps: not waiting for batches and for other ranks."""
    waited_for_data_ns: int = 0
    """Of the steady steps; what it fetches itself included."""


@dataclass(slots=True)
class Recording:
    """All ranks'."""

    ranks: list[RankRecording]
    warm_up: int

    def mean_step_ns(self) -> float:
        """The job's mean step after the warm-up: from the end of its last slow step to the end of the last step."""
        last = max(rank.steps[-1][1] for rank in self.ranks)
        first = max(rank.steps[self.warm_up][0] for rank in self.ranks)
        return (last - first) / (len(self.ranks[0].steps) - self.warm_up)

    def waiting_shares(self) -> tuple[float, float]:
        """The shares of the steady steps in which the average rank waits for data, and for other ranks and the network."""
        whole_ns = self.mean_step_ns() * (len(self.ranks[0].steps) - self.warm_up) * len(self.ranks)
        data = sum(rank.waited_for_data_ns for rank in self.ranks) / whole_ns
        worked = sum(rank.worked_ns for rank in self.ranks) / whole_ns
        return data, 1 - worked - data
