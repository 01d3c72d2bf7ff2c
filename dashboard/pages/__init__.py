"""The pages: each a function from what is to be shown to what shows it, a fixed number of blocks (None for one that is empty)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..source import Source

if TYPE_CHECKING:
    from ...collector.analysis import Analysis
    from ...collector.reports.summary import Summary


@dataclass(frozen=True, slots=True)
class View:
    """What a page is asked to show."""

    analysis: "Analysis"
    source: Source
    summary: "Summary"
    """Every number of a page that a report shows, too, comes from here."""
    theme: str = "light"
    query: dict[str, str] = field(default_factory=dict)
    """From the address: the state of the page."""

    def number(self, name: str) -> int | None:
        """A whole number from the address; None if there is none."""
        value = self.query.get(name, "")
        return int(value) if value.isdigit() and len(value) < 12 else None  # noqa: PLR2004

    def rank(self) -> int | None:
        """The rank from the address, else the slowest one, else the first; None where no rank has steps."""
        ranks, asked = self.analysis.facts.ranks, self.number("rank")
        if asked in ranks:
            return asked
        slow = self.summary.slow_rank
        return slow if slow is not None else ranks[0] if ranks else None


Page = Callable[[View], Any]

__all__ = ["Page", "View"]
