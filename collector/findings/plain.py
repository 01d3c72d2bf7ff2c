"""A verdict that is no finding: it promises nothing."""

from collections.abc import Mapping
from typing import Any

from .base import Finding


def plain(
    class_: str,
    cause: str,
    sentence: str,
    remedy: str = "",
    *,
    ranks: tuple[int, ...] = (),
    confidence: float = 0.9,
    evidence: Mapping[str, Any] | None = None,
) -> Finding:
    """A verdict without a gain."""
    return Finding(
        class_=class_,
        cause=cause,
        ranks=ranks,
        predicted_gain=0.0,
        gain_interval=(0.0, 0.0),
        confidence=confidence,
        evidence=dict(evidence or {}),
        remedy=remedy,
        sentence=sentence,
    )
