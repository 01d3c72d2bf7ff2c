"""From a trace to a verdict."""

from .analysis import Analysis, analyze
from .findings import Finding
from .reports import figures
from .reports.report import make_report

__all__ = ["Analysis", "Finding", "analyze", "figures", "make_report"]
