"""The rows of a `Summary`: what a report shows of a part, a rank, a collective …, in numbers."""

from dataclasses import dataclass
from typing import Final

from ..findings import Finding
from ..model.code import MANY_TIMES, Place
from ..model.words import milliseconds

#: A part of a step below this share has no bar.
MIN_BAR_SHARE: Final = 0.01
#: When it goes without saying how often a part is on the critical path.
ALWAYS_RATIO: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a step."""

    name: str
    label: str
    colour: str
    mean_ns: int
    share: float
    """Of the mean step."""
    median_ns: int
    """In the median step."""

    @property
    def has_bar(self) -> bool:
        """Whether it is worth a bar."""
        return self.share >= MIN_BAR_SHARE


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRow:
    """A rank's mean step, ns."""

    rank: int
    parts_ns: dict[str, float]
    """RANK_PARTS."""
    own_work_ns: float
    waits_ns: float
    is_waited_for: bool
    """Whether a finding says that the other ranks wait for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathRow:
    """A rank and part on the critical path."""

    rank: int
    part: str
    mean_ns: float
    share: float
    steps_ratio: float

    @property
    def words(self) -> str:
        """As a sentence lists it."""
        now_and_then = f" (in {self.steps_ratio:.0%} of the steps)" if self.steps_ratio < ALWAYS_RATIO else ""
        return f"rank {self.rank} {self.part} {self.share:.0%}{now_and_then}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRow:
    """Collectives of a kind and size, or of a class of sizes; times are medians in ns, bandwidths GB/s."""

    kind: str
    size: str
    """In words."""
    nbytes: int
    count: int
    median_ns: float
    wait_ns: float
    transfer_ns: float
    algbw_gbps: float
    busbw_gbps: float
    process_set: int
    tensors: float
    knows_wait: bool = True
    """Whether all ranks that take part can be seen: of one alone nobody can say how long it waits for the others."""

    @property
    def split_words(self) -> tuple[str, str]:
        """Wait and transfer for a table; a dash for a wait that cannot be known, and is part of the transfer then."""
        return milliseconds(self.wait_ns) if self.knows_wait else "-", milliseconds(self.transfer_ns)

    @property
    def bandwidth_words(self) -> tuple[str, str]:
        """Both for a table; a dash where they cannot be known: sizes unknown, or nothing seen moving."""
        return bandwidth_words(self.algbw_gbps), bandwidth_words(self.busbw_gbps)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlameRow:
    """Who is to blame for how much of the job's mean step."""

    rank: int
    track: str
    category: str
    name: str
    why: str
    mean_ns: float
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeRow:
    """A line of the user's code, and what it takes of one part of the step."""

    part: str
    place: Place

    @property
    def line(self) -> str:
        """`train.py:57`."""
        return f"{self.place.file}:{self.place.lines[0]}"

    @property
    def function(self) -> str:
        """`augment()`; "" for what has no name, as the level of the module."""
        return "" if self.place.function.startswith("<") else f"{self.place.function}()"

    @property
    def times(self) -> str:
        """How often it runs in a step; "" where that is not known, or seldom."""
        return f"{self.place.times:,}" if self.place.times >= MANY_TIMES else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStep:
    """A step of the plan: what to change next, and how long a step takes then."""

    finding: Finding
    step_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitRow:
    """A rank that waits for another one before collectives, ns of a mean step."""

    waiter: int
    culprit: int
    mean_ns: float
    ratio: float
    """Of the collectives, in which the culprit was the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A part of the step of one rank beside that of a typical rank, ns of a mean step."""

    part: str
    label: str
    rank_ns: float
    typical_ns: float

    @property
    def excess_ns(self) -> float:
        """Positive if the rank takes longer."""
        return self.rank_ns - self.typical_ns


#: Slower ones are no bandwidth that anybody compares.
_SLOWEST_GBPS: Final = 0.001


def bandwidth_words(gbps: float) -> str:
    """GB/s for a table.

    >>> bandwidth_words(125.69), bandwidth_words(0.4), bandwidth_words(0.0), bandwidth_words(0.0022), bandwidth_words(0.00000075)
    ('126', '0.400', '-', '0.0022', '<0.001')
    """
    if gbps <= 0:
        return "-"
    if gbps < _SLOWEST_GBPS:
        return f"<{_SLOWEST_GBPS}"
    return f"{gbps:.0f}" if gbps >= 100 else f"{gbps:.3f}" if gbps >= 0.01 else f"{gbps:.4f}"  # noqa: PLR2004
