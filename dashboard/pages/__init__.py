"""The pages: each a function from what is to be shown to what shows it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...collector.analysis import Analysis
from ..source import Source


@dataclass(frozen=True, slots=True)
class View:
    """What a page is asked to show."""

    analysis: Analysis
    source: Source
    theme: str = "light"
    query: dict[str, str] = field(default_factory=dict)
    """From the address: the state of the page."""

    def number(self, name: str) -> int | None:
        """A whole number from the address; None if there is none."""
        value = self.query.get(name, "")
        return int(value) if value.isdigit() and len(value) < 12 else None  # noqa: PLR2004


Page = Callable[[View], Any]

__all__ = ["Page", "View"]
