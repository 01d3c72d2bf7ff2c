"""From a trace to an analysis: the pipeline, in order."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..timeline.errors import UsageError
from ..timeline.formats import Progress
from ..timeline.model.trace import TABLES, Trace
from ..timeline.read.open import open_trace
from ..timeline.vocabulary import Category
from .facts import Facts, shares_clock
from .findings import WORTH_RATIO, Finding, Rule, rules_for
from .findings.doubt import doubt_note, doubted, promises_gains
from .findings.freed_cores import with_freed_cores
from .findings.incomplete import only_told
from .findings.places import with_places
from .findings.plan import PlanStep, make_plan
from .findings.unexplained import unexplained
from .findings.verdict import choose_verdict
from .model.bandwidth import split_collectives, summarise_collectives
from .model.blame import blame_of_parts, find_blame, summarise_blame
from .model.breakdown import PARTS, Breakdown, break_down
from .model.condition import Condition, find_condition
from .model.condition_words import MIN_STEPS
from .model.contention import find_contention
from .model.cpu_time import read_cpu_time
from .model.device import Device
from .model.graph import build_graph
from .model.host_load import find_host_load
from .model.lost_cores import with_lost_cores
from .model.notes import make_notes
from .model.parts_graph import graph_of_parts
from .model.steps import Steps, find_steps
from .predict.costs import find_costs
from .predict.replay import Replay

#: With fewer steps the report says that its numbers are rough.
FEW_STEPS = MIN_STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """Everything that was found out about a run; tables are pandas frames."""

    facts: Facts
    collectives: pd.DataFrame
    """By kind, size and process set (bandwidth.summarise_collectives), analysed steps only."""
    findings: tuple[Finding, ...]
    """Largest gain first."""
    verdict: Finding
    plan: tuple[PlanStep, ...]
    """What to change first, and what is left to gain after that."""
    blame: pd.DataFrame
    """Who is to blame for each nanosecond of each step (blame.find_blame); sums to the steps of the job."""
    notes: tuple[str, ...]
    condition: Condition
    """How the run ended, and what its trace allows to say: read before everything else."""

    @property
    def steps(self) -> pd.DataFrame:
        """One row a rank and analysed step: `rank`, `step`, `start_ns`, `step_ns`, the parts (PARTS) and `hidden_ns`, in ns."""
        found, breakdown = self.facts.steps, self.facts.breakdown
        shape = found.start_ns.shape
        columns = {
            "rank": np.repeat(np.array(found.ranks, dtype=np.int64), found.count),
            "step": np.tile(found.numbers, len(found.ranks)),
            "start_ns": found.start_ns.ravel(),
            "step_ns": found.duration_ns.ravel(),
            **{part: breakdown.parts_ns[part].reshape(shape).ravel() for part in PARTS},
            "hidden_ns": breakdown.hidden_ns.ravel(),
        }
        return pd.DataFrame(columns)

    @property
    def findings_table(self) -> pd.DataFrame:
        """One row a finding, largest gain first."""
        names = ("class_", "cause", "ranks", "predicted_gain", "gain_interval", "confidence", "sentence", "remedy")
        rows = [[getattr(finding, name) for name in names] for finding in self.findings]
        return pd.DataFrame(rows, columns=["class", *names[1:]])

    @property
    def critical_path(self) -> pd.DataFrame:
        """Which ranks and parts make the steps as long as they are (blame.summarise_blame); empty without a common clock."""
        known = self.blame if self.facts.has_one_clock else self.blame.iloc[:0]
        return summarise_blame(known, self.facts.steps.count)

    @property
    def device(self) -> Device | None:
        """What the devices do, and why they are idle; None where the trace shows none."""
        return self.facts.device

    @property
    def trace(self) -> Trace:
        """What was analysed."""
        return self.facts.trace

    def what_if(self) -> Any:
        """Controls for a notebook: sliders and switches, and the step time that the changed run would have.

        Returns:
            An ipywidgets box, which a notebook shows if it is the last line of a cell.

        Raises:
            UsageError: ipywidgets is not installed (`pip install 'tlkit[notebook]'`).
        """
        from .reports.notebook_controls import what_if_controls  # noqa: PLC0415  as below

        return what_if_controls(self.facts)

    def _repr_html_(self) -> str:
        """What a notebook shows: verdict, plan, the parts of a step, and a plot of the steps."""
        from .reports.html import analysis_cell  # noqa: PLC0415  reports are drawn from analyses

        return analysis_cell(self)


def analyze(
    source: Trace | str | Path | Sequence[str | Path],
    *,
    warm_up: int | None = None,
    steps: tuple[int, int] | None = None,
    ranks: Sequence[int] | None = None,
    rules: Sequence[Rule] | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Analysis:
    """Diagnose a run.

    Args:
        source: a trace, or what `open_trace` takes.
        warm_up: leading steps to leave out; None to find out.
        steps: first step and the one after the last; None for all.
        ranks: look at these ranks only.
        rules: what to look for; None for all that are known.
        progress: see `open_trace`.

    Raises:
        TraceError: it cannot be read.
        UsageError: `ranks` or `steps` select nothing.
    """
    trace = source if isinstance(source, Trace) else open_trace(source, progress=progress)
    if ranks is not None:
        trace = of_ranks(trace, ranks)
    found = find_steps(trace, warm_up=warm_up, selected=steps)
    if steps is not None and not found.count:
        raise UsageError(f"--steps {steps[0]}:{steps[1]}: this trace does not contain these steps")
    facts = measure(trace, found)
    condition = find_condition(trace, found, facts.host_load, now_unix_ns=time.time_ns())
    looked_for = (rules_for(facts) if rules is None else rules) if found.count else ()
    told = only_told(facts, condition, [finding for rule in looked_for for finding in rule.find(facts)])
    if found.count and rules is None:
        told += only_told(facts, condition, unexplained(facts, told))
    findings, plan = make_plan(facts, with_places(facts, with_freed_cores(facts, told)))
    verdict = choose_verdict(facts, findings, condition)
    if verdict.class_ == "healthy":  # its sentence says what more there is
        findings, plan = [one for one in findings if one.predicted_gain <= WORTH_RATIO], ()
    note = doubt_note(facts)
    in_steps = facts.in_steps(facts.collectives) if found.count else facts.collectives
    return Analysis(
        facts=facts,
        collectives=summarise_collectives(in_steps, trace.meta.size),
        findings=tuple(doubted(facts, findings)),
        verdict=doubted(facts, [verdict])[0],
        plan=plan if promises_gains(facts) else (),
        blame=_blame(facts),
        notes=(*make_notes(facts, condition), *([] if note is None else [note])),
        condition=condition,
    )


def measure(trace: Trace, steps: Steps) -> Facts:
    """Everything that the rules look at."""
    counted = with_lost_cores(trace, steps)
    breakdown, cpu = break_down(trace, steps), read_cpu_time(counted, steps)
    collectives = split_collectives(trace, has_one_clock=shares_clock(trace.meta))
    contention = find_contention(trace, steps, breakdown, cpu, collectives)
    is_of_parts = not _shows_waiting(trace, steps, breakdown)
    graph = None
    if steps.count and breakdown.knows_compute:
        graph = graph_of_parts(steps, breakdown) if is_of_parts else build_graph(trace, steps, breakdown)
    return Facts(
        trace=trace,
        steps=steps,
        breakdown=breakdown,
        collectives=collectives,
        cpu=cpu,
        host_load=find_host_load(counted, steps),
        contention_ns=contention,
        graph=graph,
        replay=None if graph is None else Replay(graph, find_costs(graph, breakdown, contention)),
        is_of_parts=is_of_parts,
    )


def _shows_waiting(trace: Trace, steps: Steps, breakdown: Breakdown) -> bool:
    """Whether the trace says by moments who waits for whom.

    Not without a common clock, and not if ranks communicate in operations that the trace does not match up.
    """
    if not (shares_clock(trace.meta) and trace.meta.knows_order):
        return False
    is_matched = len(steps.ranks) < 2 or len(trace.collectives) > 0 or len(trace.messages) > 0  # noqa: PLR2004
    return is_matched or not breakdown.parts_ns[str(Category.COLLECTIVE)].any()


def _blame(facts: Facts) -> pd.DataFrame:
    if facts.graph is None:
        return blame_of_parts(facts.steps, facts.breakdown).iloc[:0]
    return blame_of_parts(facts.steps, facts.breakdown) if facts.is_of_parts else find_blame(facts.graph)


def of_ranks(trace: Trace, ranks: Sequence[int]) -> Trace:
    """A trace of some of its ranks.

    Raises:
        UsageError: it lacks one of them.
    """
    missing = sorted(set(ranks) - set(trace.meta.ranks))
    if missing:
        raise UsageError(f"--ranks: this trace has ranks {list(trace.meta.ranks)}, not {missing}")
    kept = {name: getattr(trace, name)[getattr(trace, name)["rank"].isin(ranks)] for name in TABLES}
    return replace(trace, meta=replace(trace.meta, ranks=tuple(sorted(set(ranks)))), cache_key=None, **kept)
