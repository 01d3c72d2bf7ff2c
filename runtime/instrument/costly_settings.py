"""What makes training slow and shows nowhere else: debugging aids that somebody left on, and what a model is like.

They are looked at in steps 0, 1, 2, 4, 8 and so on, before backward, since some are on there alone, and at the end of the step.
What a step had on is written into the timeline; if nothing is on any more, that as well.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from ...timeline.record import recorder
from ...timeline.vocabulary import FIRST_CORE, LAST_CORE, LOSS_COUNTER, OPERATOR_THREADS, OWN_CORES, CostlySetting

#: A tool that watches the training thread has one of these numbers, by Python's own table.
_DEBUGGER_COVERAGE_PROFILER: Final = (0, 1, 2)


def is_looked_at(step: int) -> bool:
    """Whether settings are looked at in a step: 0, 1, 2, 4, 8 and so on."""
    return step & (step - 1) == 0


def settings_now() -> set[str]:
    """What is on at this moment, for the calling thread."""
    torch, tensorflow = sys.modules.get("torch"), sys.modules.get("tensorflow")
    is_profiling = _is_profiling(torch)
    found = {
        # torch.profiler sets a trace function, too, with_stack=True.
        CostlySetting.PYTHON_TRACING: not is_profiling and is_traced(),
        CostlySetting.TRACEMALLOC: _is_tracing_memory(),
        CostlySetting.TORCH_PROFILER: is_profiling,
        CostlySetting.AUTOGRAD_ANOMALY: torch is not None and torch.is_anomaly_enabled(),
        CostlySetting.LAUNCH_BLOCKING: os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" and _has_device(torch),
        CostlySetting.DISTRIBUTED_DEBUG: _compares_collectives(torch),
        CostlySetting.EAGER_FUNCTIONS: tensorflow is not None and _says_so(tensorflow, "functions_run_eagerly"),
    }
    return {str(setting) for setting, is_on in found.items() if is_on}


def is_traced() -> bool:
    """Whether a debugger, a profiler or a coverage tool watches what the calling thread runs."""
    monitoring: Any = getattr(sys, "monitoring", None)
    watched = monitoring is not None and any(map(monitoring.get_tool, _DEBUGGER_COVERAGE_PROFILER))
    return watched or sys.gettrace() is not None or sys.getprofile() is not None


def _is_tracing_memory() -> bool:
    tracemalloc = sys.modules.get("tracemalloc")
    return tracemalloc is not None and tracemalloc.is_tracing()


def _is_profiling(torch: Any) -> bool:
    """Whether a torch.profiler records, in whichever thread it was started."""
    return torch is not None and bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def _has_device(torch: Any) -> bool:
    return torch is not None and torch.cuda.is_initialized()


def _compares_collectives(torch: Any) -> bool:
    """Whether ranks compare what they ask for before each collective of torch.distributed."""
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() != "DETAIL" or torch is None:
        return False
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _says_so(tensorflow: Any, question: str) -> bool:
    ask = getattr(getattr(tensorflow, "config", None), question, None)
    return callable(ask) and bool(ask())


class Habits(Protocol):
    """What a model and its optimizers are like."""

    def called(self, module: Any) -> None:
        """The training thread calls a module, outside of any other."""

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped."""

    def found(self) -> Mapping[str, float]:
        """What is so at the end of a step, of which share of the model's elements or of forward and backward."""

    def details(self) -> Mapping[str, str]:
        """Words for some of that."""

    def loss_share(self) -> float:
        """How much of backward is the loss's, as far as the script computes it outside of modules: 0 to 1."""

    @property
    def repeats(self) -> Any:
        """What compares the calls of modules in a step that is looked at (repeats.py)."""


class SettingsWatch:
    """What the training thread has on in the steps that are looked at."""

    def __init__(self, make_habits: Callable[[], Habits] | None = None) -> None:
        """Ask what `make_habits` makes, too."""
        self.make_habits = make_habits
        self.forget()

    def forget(self) -> None:
        """Another recording begins."""
        self._is_due = True
        self._seen: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._told_threads = False
        self._habits = None if self.make_habits is None else self.make_habits()
        self.repeats: Any = None if self._habits is None else self._habits.repeats
        """None in steps that are not looked at; every call of a module asks."""

    def called(self, module: Any) -> None:
        """A module was called, outside of any other."""
        if self._is_due and self._habits is not None:
            self._habits.called(module)

    def look(self) -> None:
        """Take note of what is on now, if this step is looked at."""
        if self._is_due:
            self._seen |= dict.fromkeys(settings_now(), 0.0)

    def note(self, setting: CostlySetting) -> None:
        """A setting is on that only its own object knows of."""
        if self._is_due:
            self._seen[str(setting)] = 0.0

    def stepped(self, optimizer: object) -> None:
        """An optimizer has stepped, which need not end a step."""
        if self._is_due and self._habits is not None:
            self._habits.stepped(optimizer)

    def step_ended(self, number: int) -> None:
        """Write what the step had on; the next one is `number`."""
        if self._is_due:
            self.look()
            details: Mapping[str, str] = {}
            if self._habits is not None:
                self._seen |= self._habits.found()
                details = self._habits.details()
                if number > 1 and recorder.is_timeline_on():  # the first step allocates
                    recorder.counter(LOSS_COUNTER, round(100 * self._habits.loss_share()))
            writer = recorder.timeline()
            # Again each time: of a shard with a limited size the oldest parts are removed.
            if writer is not None and (self._seen or self._written):
                writer.settings(dict(sorted(self._seen.items())), details)
                self._written = self._seen
            self._seen = {}
            self._tell_threads()
        self._is_due = is_looked_at(number)
        self.repeats = self._habits.repeats if self._is_due and self._habits is not None else None
        if self.repeats is not None:
            self.repeats.forget()

    def _tell_threads(self) -> None:
        """How many threads compute an operator, and on which cores, where there are several, or not all, or have been."""
        torch = sys.modules.get("torch")
        threads = 1 if torch is None else torch.get_num_threads()
        cores = os.sched_getaffinity(0)
        is_bound = len(cores) < (os.cpu_count() or 1)
        if threads > 1 or is_bound or self._told_threads:
            self._told_threads = True
            recorder.counter(OPERATOR_THREADS, threads)
            recorder.counter(OWN_CORES, len(cores))
        if is_bound:
            recorder.counter(FIRST_CORE, min(cores))
            recorder.counter(LAST_CORE, max(cores))


watch: Final = SettingsWatch()
