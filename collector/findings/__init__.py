"""The rules, one small class each.  A new rule is a class with `find` and a line here."""

from .base import CLASSES, WORTH_RATIO, Finding, Rule
from .communication import ExposedCommunication
from .data import SlowLoader
from .host import Checkpoints, HostCode, IdleDevice
from .late_rank import LateRank
from .straggler import SlowRank

RULES: tuple[Rule, ...] = (
    SlowLoader(),
    SlowRank(),
    LateRank(),
    ExposedCommunication(),
    HostCode(),
    IdleDevice(),
    Checkpoints(),
)

__all__ = ["CLASSES", "RULES", "WORTH_RATIO", "Finding", "Rule"]
