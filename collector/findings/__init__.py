"""The rules, one small class each.

A new rule is a class with `find` and a line here; other packages add theirs by entry point.
"""

from functools import cache
from importlib.metadata import entry_points

from ...timeline.errors import UsageError
from ..facts import Facts
from .base import CLASSES, WORTH_RATIO, Finding, Rule
from .blocked import BlockedPhases
from .calls import BlockingCalls
from .communication import ExposedCommunication
from .compiled_again import CompiledAgain
from .compute import GarbageCollection, SlowOptimizer
from .computed_again import ComputedAgain
from .cores import StarvedOfCores, TooManyThreads
from .costly_settings import CostlySettings
from .data import SlowLoader, WorkerStartUp
from .device import ExposedOnDevice, IdleDevice, SlowCopies
from .device_trouble import AllocatorRetries, DeviceErrors
from .epoch_start import EpochStart
from .every_pass import ReducedInEveryPass
from .gradients import BucketCopies, OversizeGradient
from .host import Checkpoints, HostCode
from .host_code_in_model import HostCodeInModel
from .interpreter_lock import InterpreterLock
from .late_gradients import LateGradients
from .late_rank import LateRank, LateSteps
from .latency import HighLatency
from .long_cycle import LongCycle
from .only_communication import MovingBytes
from .pipeline import Pipeline
from .places import CodeInBackward
from .python_loops import PythonLoops
from .recomputation import Recomputation
from .reduced_again import ReducedAgain
from .run_level import Lapses
from .straggler import SlowRanks
from .transport import SlowLink, WrongBackend
from .uneven import UnevenBatches

RULES: tuple[Rule, ...] = (
    SlowLoader(),
    WorkerStartUp(),
    EpochStart(),
    SlowRanks(),
    UnevenBatches(),
    SlowLink(),
    HighLatency(),
    WrongBackend(),
    OversizeGradient(),
    LateGradients(),
    BucketCopies(),
    ReducedInEveryPass(),
    ReducedAgain(),
    BlockingCalls(),
    Pipeline(),
    ExposedCommunication(),
    ExposedOnDevice(),
    SlowCopies(),
    HostCode(),
    IdleDevice(),
    AllocatorRetries(),
    DeviceErrors(),
    CostlySettings(),
    SlowOptimizer(),
    StarvedOfCores(),
    TooManyThreads(),
    BlockedPhases(),
    CodeInBackward(),
    PythonLoops(),
    HostCodeInModel(),
    Recomputation(),
    InterpreterLock(),
    GarbageCollection(),
    CompiledAgain(),
    ComputedAgain(),
    Checkpoints(),
    Lapses(),
)

#: The rules for a trace that shows communication only, as Horovod's own timelines do.
ONLY_COMMUNICATION: tuple[Rule, ...] = (LateRank(), LateSteps(), LongCycle(), MovingBytes())

#: Entry points of this group name classes of rules, which are made without arguments.
GROUP = "tlkit.rules"


@cache
def all_rules() -> tuple[Rule, ...]:
    """Our rules, and those of other installed packages.

    Raises:
        UsageError: another package's rule cannot be loaded.
    """
    others: list[Rule] = []
    for entry in entry_points(group=GROUP):
        try:
            others.append(entry.load()())
        except Exception as error:  # somebody else's code
            raise UsageError(f"the rule {entry.name} ({entry.value}) cannot be loaded: {error}") from error
    return (*RULES, *others)


def rules_for(facts: Facts) -> tuple[Rule, ...]:
    """The rules that fit what a trace shows, and those of other installed packages."""
    known = all_rules()
    return known if facts.breakdown.knows_compute else (*ONLY_COMMUNICATION, *known[len(RULES) :])


__all__ = ["CLASSES", "GROUP", "RULES", "WORTH_RATIO", "Finding", "Rule", "all_rules", "rules_for"]
