"""What the rules look at: one object that holds the measured facts of a run, ready to reason with."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ..timeline.model.trace import Trace, TraceMeta
from ..timeline.vocabulary import CostlySetting
from .model.arrays import Floats, Integers, IntMatrix, Matrix
from .model.breakdown import IDLE, Breakdown
from .model.code import CodeLooks
from .model.code_looks import find_looks, find_thread_looks, find_worker_looks
from .model.cpu_time import CpuTime
from .model.crowding import Binding, Crowd, find_bindings, find_crowds
from .model.device import Device, find_device
from .model.graph import ON_OPERATION, Graph
from .model.host_load import HostLoad
from .model.loading import Loading, find_loading
from .model.starvation import are_all_starved, without_starvation
from .model.steps import Steps
from .predict.change import Change, removed
from .predict.gain import gain_of
from .predict.replay import Replay


def shares_clock(meta: TraceMeta) -> bool:
    """Whether the ranks' times are of one clock."""
    return meta.clock.method != "none" or len(meta.ranks) < 2  # noqa: PLR2004


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a change would do to the steps."""

    change: Change
    saved_ns: Floats
    """How much shorter each step of the job becomes: float[step]."""
    gain: float
    """Share of the mean step that goes."""
    interval: tuple[float, float]
    """95 %, by bootstrap over blocks of steps."""

    @property
    def mean_saved_ns(self) -> float:
        """Of a step."""
        return float(self.saved_ns.mean()) if len(self.saved_ns) else 0.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A run, measured.  Gains come from `outcome`, which replays the run with a change."""

    trace: Trace
    steps: Steps
    breakdown: Breakdown
    collectives: pd.DataFrame
    """With wait and transfer (bandwidth.split_collectives), all steps."""
    cpu: CpuTime
    host_load: HostLoad | None
    """Who had the cores over the analysed steps; None where nothing tells."""
    contention_ns: Matrix
    """How much longer backward takes because communication has its cores (contention.py): float[rank, step]."""
    graph: Graph | None
    """None where the trace does not say what the ranks compute, or has no steps."""
    replay: Replay | None
    is_of_parts: bool
    """Whether the graph comes from sums of the parts of steps, since no moments say who waits for whom (parts_graph.py)."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Recording ranks, in the order of the rows."""
        return self.breakdown.ranks

    @property
    def has_one_clock(self) -> bool:
        """Whether times of different ranks can be compared; else only what happens within a rank."""
        return shares_clock(self.trace.meta)

    @cached_property
    def mean_step_ns(self) -> float:
        """Mean step of the job."""
        return float(self.steps.job_ns.mean()) if self.steps.count else 0.0

    @property
    def is_across_hosts(self) -> bool:
        """Whether ranks are known to be on several hosts."""
        return len(set(self.trace.meta.hosts.values())) > 1

    def is_on_all(self, setting: CostlySetting) -> bool:
        """Whether all ranks have a setting that makes training slow."""
        on = self.trace.meta.settings
        return all(str(setting) in on.get(rank, {}) for rank in self.ranks)

    @cached_property
    def crowds(self) -> dict[int, Crowd]:
        """The ranks whose operators have more threads than the rank has cores."""
        return find_crowds(self.trace)

    @cached_property
    def bindings(self) -> list[Binding]:
        """The ranks that are bound to the same cores, fewer than they are."""
        return find_bindings(self.trace)

    @cached_property
    def code(self) -> CodeLooks | None:
        """Where in the user's code the training threads were seen; None where nobody looked."""
        return find_looks(self.trace, self.steps, self.breakdown)

    @cached_property
    def worker_code(self) -> CodeLooks | None:
        """Where in the code workers were seen while they made batches; None where nobody looked."""
        return find_worker_looks(self.trace, self.steps, self.breakdown)

    @cached_property
    def thread_code(self) -> CodeLooks | None:
        """Where in the code other threads of the ranks' processes were seen that were busy; None where none was."""
        return find_thread_looks(self.trace, self.steps)

    @cached_property
    def loading(self) -> Loading:
        """Batches that workers made, and the waits for them."""
        if self.graph is not None and not self.is_of_parts:  # which needed them
            return self.graph.loading
        return find_loading(self.trace, self.steps)

    @cached_property
    def end_ns(self) -> int:
        """When the last span ends."""
        spans = self.trace.spans
        return int((spans["start_ns"].to_numpy() + spans["dur_ns"].to_numpy()).max()) if len(spans) else 0

    @cached_property
    def device(self) -> Device | None:
        """What the devices do, and why they are idle; None where the trace shows none."""
        return find_device(self.trace, self.steps, self.breakdown)

    def outcome(self, change: Change) -> Outcome:
        """Replay the run with a change.

        Raises:
            ValueError: the trace has no graph.
        """
        if self.replay is None:
            raise ValueError("this trace cannot be replayed")
        return self.outcome_of(self.replay.saved_ns(change), change)

    def outcome_of(self, saved_ns: Floats, change: Change) -> Outcome:
        """What it means to save so much in each step."""
        gain, interval = gain_of(saved_ns, self.steps.job_ns.astype(float))
        return Outcome(change=change, saved_ns=saved_ns, gain=gain, interval=interval)

    def part(self, name: str) -> IntMatrix:
        """A part of the breakdown: int64[rank, step]."""
        return self.breakdown.parts_ns[name]

    @cached_property
    def all_starved(self) -> bool:
        """Whether every rank's training thread waits for cores: the machine is loaded, and no rank by itself."""
        return are_all_starved(self.cpu, self.breakdown)

    def worked(self, name: str) -> Matrix:
        """A part without what the thread waited for a core, where all ranks do so by turns: float[rank, step], ns.

        Which rank has to wait changes from step to step, and says nothing of the ranks; what they run, and are blocked for, does.
        """
        took: Matrix = self.part(name).astype(float)
        return without_starvation(self.cpu, name, took) if self.all_starved else took

    def without(self, part: str, less_ns: np.ndarray | float) -> Change:
        """The change that takes some time out of a part of the ranks' own work, no more than there is."""
        return Change(work={part: removed(self.part(part).astype(float), less_ns)})

    @property
    def critical_row(self) -> Integers:
        """For each step the row of the rank whose own work takes longest."""
        rows: Integers = np.argmax(self.breakdown.own_work_ns, axis=0)
        return rows

    @cached_property
    def is_pipeline(self) -> bool:
        """Whether ranks mostly wait for messages of each other, or for nothing that was recorded, as stages of a pipeline do."""
        if self.graph is None or self.breakdown.on_device or len(self.ranks) < 2:  # noqa: PLR2004  nobody to wait for
            return False
        if not self.trace.meta.knows_order:  # sums of steps do not tell messages from collectives
            return False
        graph = self.graph
        waited = (graph.wait_end_ns - graph.wait_start_ns).astype(float)
        on_operation = graph.wait_kind == ON_OPERATION
        target = np.where(on_operation, graph.wait_target, 0)
        is_message = (
            on_operation & (graph.operations.process_set[target] < 0) if len(graph.operations) else ~on_operation
        )
        unexplained = float(self.part(IDLE).sum()) if self.trace.meta.runtime == "torch" else 0.0
        messages = float(waited[is_message].sum()) + unexplained
        return messages > float(waited[on_operation & ~is_message].sum())

    def on_critical_rank(self, name: str) -> Floats:
        """A part of the breakdown on the critical rank of each step (ns)."""
        part = self.part(name)
        picked: Floats = part[self.critical_row, np.arange(part.shape[1])].astype(float)
        return picked

    def in_steps(self, table: pd.DataFrame) -> pd.DataFrame:
        """Rows whose `start_ns` falls into an analysed step of their rank."""
        keep = np.zeros(len(table), dtype=bool)
        rank, start = table["rank"].to_numpy(), table["start_ns"].to_numpy()
        order = np.argsort(rank, kind="stable")
        bounds = np.searchsorted(rank[order], [*self.ranks, *(number + 1 for number in self.ranks)])
        for row in np.flatnonzero(np.diff(bounds.reshape(2, -1), axis=0)[0]).tolist():
            mine = order[bounds[row] : bounds[len(self.ranks) + row]]
            position = np.searchsorted(self.steps.start_ns[row], start[mine], side="right") - 1
            inside = position >= 0
            inside[inside] = start[mine][inside] < self.steps.end_ns[row][position[inside]]
            keep[mine[inside]] = True
        return table[keep]
