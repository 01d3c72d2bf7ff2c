"""What would be saved if communication hid behind backward as far as it can."""

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts, Outcome
from .change import Change


def overlapped(facts: Facts) -> Outcome:
    """No step saves more than it would without communication, nor more than backward has left to hide behind."""
    without = Change(latency=0.0, transfer=0.0)
    saved = facts.outcome(without).saved_ns
    backward = facts.part(str(Category.BACKWARD)).max(axis=0)
    room = np.maximum(backward - facts.breakdown.hidden_ns.mean(axis=0), 0.0)
    kept = np.minimum(saved, room)
    factor = 1 - float(kept.sum() / max(saved.sum(), 1.0))
    return facts.outcome_of(kept, Change(latency=factor, transfer=factor))
