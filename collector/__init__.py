"""From a trace to a verdict.

What analyses (and needs pandas) is loaded when it is first asked for: a server answers before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import Analysis, analyze
    from .findings import Finding
    from .reports import figures
    from .reports.report import make_report

_LOADED_WHEN_ASKED = {
    "Analysis": "analysis",
    "Finding": "findings",
    "analyze": "analysis",
    "make_report": "reports.report",
}


def __getattr__(name: str) -> Any:
    if name == "figures":
        return import_module(".reports.figures", __name__)
    if name in _LOADED_WHEN_ASKED:
        return getattr(import_module(f".{_LOADED_WHEN_ASKED[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Analysis", "Finding", "analyze", "figures", "make_report"]
