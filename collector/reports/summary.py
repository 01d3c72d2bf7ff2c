"""What all reports show: every number, word and threshold once, computed from an analysis.

The terminal, HTML, Markdown and JSON draw a `Summary`; they choose where and how, and compute nothing.  Thresholds of what is
worth a line stand here.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import TraceMeta
from ...timeline.vocabulary import Category
from ..analysis import Analysis
from ..compare.scaling import Scaling, describe_limits
from ..findings import Finding
from ..model.bandwidth import Line, fit_lines
from ..model.breakdown import EXPOSED, PARTS
from ..model.condition import Condition
from ..model.device import Device
from ..model.exposure import Communication, describe_communication
from ..model.step_times import StepTimes, describe_skew, mean_step, median_step, median_steps_by_rank, step_times
from ..model.waiting import waits_for
from ..model.words import milliseconds
from ..predict.what_if import Prediction
from .palette import COLOURS, label_of
from .rows import BlameRow, CodeRow, CollectiveRow, Difference, Part, PathRow, PlanStep, RankRow, WaitRow

#: Findings that promise less are noise to a reader.
MIN_SHOWN_GAIN: Final = 0.01
#: Parts of the critical path worth a word.
MIN_PATH_SHARE: Final = 0.02
MAX_ON_PATH: Final = 6
MAX_RANKS: Final = 16
MAX_COLLECTIVES: Final = 12
MAX_FILES: Final = 4
#: Lines of the user's code worth one of the report, and how often somebody has to have looked.
MIN_CODE_SHARE: Final = 0.03
MAX_CODE_LINES: Final = 8
MIN_CODE_LOOKS: Final = 40
CODE_TITLE: Final = "Where in your code"

#: Parts that the table of ranks shows one by one.
RANK_PARTS: Final = tuple(
    map(str, (Category.DATA, Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.OTHER))
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A run as every report shows it."""

    meta: TraceMeta
    headline: str
    files: str
    """In words."""
    steps: StepTimes
    excluded: int
    inferred: bool
    parts: tuple[Part, ...]
    """All parts of a step, in its order, also those that take no time."""
    hidden_mean_ns: int
    hidden_median_ns: int
    """Communication behind computation, which is no part of the step."""
    shows_hidden: bool
    by_rank_ns: dict[int, dict[str, int]]
    """By rank the parts of its median step."""
    ranks: tuple[RankRow, ...]
    """Empty where there is nothing to compare; the slowest if there are many."""
    ranks_of: int
    path: tuple[PathRow, ...]
    """Empty where the ranks' clocks are not aligned."""
    waits: tuple[WaitRow, ...]
    """Longest first; empty where the ranks' clocks are not aligned."""
    slow_rank: int | None
    """The rank with most own work; None where ranks cannot be compared."""
    waterfall: tuple[Difference, ...]
    """The own work of `slow_rank` beside a typical rank's (the median of the others, part by part); largest difference first."""
    communication: Communication | None
    """None without collectives."""
    lines: tuple[Line, ...]
    """What a collective costs, by kind."""
    collectives: tuple[CollectiveRow, ...]
    collective_classes: tuple[CollectiveRow, ...]
    """The same in so few rows that people read them."""
    is_classed: bool
    """Whether rows of `collective_classes` hold several sizes."""
    verdict: Finding
    findings: tuple[Finding, ...]
    """Largest gain first."""
    notes: tuple[str, ...]
    condition: Condition
    """How the run ended, and what its trace allows to say."""
    predictions: tuple[Prediction, ...] = ()
    scaling: Scaling | None = None
    blame: tuple[BlameRow, ...] = ()
    """Where the step goes: largest share first; shares sum to 1."""
    code: tuple[CodeRow, ...] = ()
    """Lines of the user's code that take most; empty where nobody looked."""
    device: Device | None = None
    """None where the trace shows none."""
    plan: tuple[PlanStep, ...] = ()
    """In the order in which to change things."""
    model_error_ratio: float | None = None
    """How far the replay without a change is from the measured steps (Replay.error_ratio); None where nothing is replayed."""

    @property
    def shown_parts(self) -> tuple[Part, ...]:
        """Parts that take time."""
        return tuple(part for part in self.parts if part.mean_ns > 0 or part.median_ns > 0)

    @property
    def shown_condition(self) -> tuple[str, ...]:
        """What has to be read first, but for what the verdict begins with."""
        return tuple(text for text in self.condition.sentences() if not self.verdict.sentence.startswith(text))

    @property
    def shown_findings(self) -> tuple[Finding, ...]:
        """Findings that promise something."""
        return tuple(finding for finding in self.findings if finding.predicted_gain >= MIN_SHOWN_GAIN)

    @property
    def shown_path(self) -> tuple[PathRow, ...]:
        """The few rows that hold the steps."""
        return tuple(row for row in self.path if row.share >= MIN_PATH_SHARE)[:MAX_ON_PATH]

    @property
    def plan_words(self) -> str:
        """`112 ms → 61.0 ms → 48.0 ms`."""
        return " → ".join(milliseconds(ns) for ns in (self.steps.mean_ns, *(step.step_ns for step in self.plan)))


def summarize(analysis: Analysis, predictions: Sequence[Prediction] = (), scaled: Scaling | None = None) -> Summary:
    """All that a report shows of an analysis, of predictions, and of a comparison with one rank."""
    facts, meta = analysis.facts, analysis.trace.meta
    times = step_times(facts.steps, facts.breakdown)
    hidden = facts.breakdown.hidden_ns
    knows_wait = len(meta.ranks) > 1 or meta.size == 1
    collectives = tuple(_collective(row, knows_wait=knows_wait) for row in analysis.collectives.to_dict("records"))
    is_long = len(collectives) > MAX_COLLECTIVES
    classes = _by_power_of_two(analysis.collectives, knows_wait=knows_wait) if is_long else collectives
    notes = (*analysis.notes, describe_skew(times), None if scaled is None else describe_limits(scaled))
    return Summary(
        meta=meta,
        headline=_headline(analysis, times),
        files=", ".join(meta.files[:MAX_FILES]) + (", …" if len(meta.files) > MAX_FILES else ""),
        steps=times,
        excluded=facts.steps.excluded,
        inferred=facts.steps.inferred,
        parts=_parts(analysis, times),
        hidden_mean_ns=round(float(hidden.mean())) if hidden.size else 0,
        hidden_median_ns=int(np.median(hidden)) if hidden.size else 0,
        shows_hidden=facts.breakdown.knows_compute and bool(hidden.any()),
        by_rank_ns=median_steps_by_rank(facts.steps, facts.breakdown),
        ranks=_ranks(analysis),
        ranks_of=len(facts.ranks),
        path=_path(analysis),
        waits=_waits(analysis),
        slow_rank=slow_rank(analysis),
        waterfall=_waterfall(analysis),
        communication=describe_communication(facts),
        lines=fit_lines(analysis.collectives),
        collectives=collectives,
        collective_classes=classes[:MAX_COLLECTIVES],
        is_classed=len(collectives) > MAX_COLLECTIVES,
        verdict=analysis.verdict,
        findings=analysis.findings,
        device=analysis.device,
        notes=tuple(note for note in notes if note is not None),
        condition=analysis.condition,
        predictions=tuple(predictions),
        scaling=scaled,
        blame=_blame(analysis),
        code=_code(analysis),
        plan=tuple(PlanStep(finding=step.finding, step_ns=step.step_ns) for step in analysis.plan),
        model_error_ratio=None if facts.replay is None else facts.replay.error_ratio,
    )


def _blame(analysis: Analysis) -> tuple[BlameRow, ...]:
    """The rows of blame over all steps, largest first."""
    if analysis.blame.empty:
        return ()
    keys = ["rank", "track", "category", "name", "why"]
    table = analysis.blame.groupby(keys)["ns"].sum().sort_values(ascending=False, kind="stable").reset_index()
    total, steps = max(float(table["ns"].sum()), 1.0), max(analysis.facts.steps.count, 1)
    return tuple(
        BlameRow(
            rank=int(row["rank"]),
            track=str(row["track"]),
            category=str(row["category"]),
            name=str(row["name"]),
            why=str(row["why"]),
            mean_ns=float(row["ns"]) / steps,
            share=float(row["ns"]) / total,
        )
        for row in table.to_dict("records")
    )


def _code(analysis: Analysis) -> tuple[CodeRow, ...]:
    """Lines that take a noticeable share of a step, largest first."""
    looks = analysis.facts.code
    if looks is None or len(looks) < MIN_CODE_LOOKS:
        return ()
    lines = [CodeRow(part=part, place=place) for part, place in looks.lines() if place.share >= MIN_CODE_SHARE]
    return tuple(lines[:MAX_CODE_LINES])


def title_of(finding: Finding) -> str:
    """Class and cause; a healthy run has no cause."""
    return finding.class_ if finding.class_ == "healthy" else f"{finding.class_}: {finding.cause}"


def describe_steps(times: StepTimes) -> str:
    """How many steps of what length, in a clause."""
    return (
        f"{times.count} steps, mean {milliseconds(times.mean_ns)} ({times.steps_per_second:.3g} a second), "
        f"median {milliseconds(times.median_ns)}, p95 {milliseconds(times.p95_ns)}"
    )


def _headline(analysis: Analysis, times: StepTimes) -> str:
    meta, spans = analysis.trace.meta, analysis.trace.spans
    ranks = f"{len(meta.ranks)} of {meta.size} ranks" if len(meta.ranks) != meta.size else f"{meta.size} ranks"
    if meta.size < 2 and len(meta.ranks) == 1:  # noqa: PLR2004
        ranks = "1 rank"
    end_ns = int((spans["start_ns"] + spans["dur_ns"]).max()) if len(spans) else 0
    pieces = [f"{meta.format} timeline", ranks, f"{end_ns / 1e9:.1f} s", f"{meta.events:,} events"]
    if times.count:
        pieces.append(describe_steps(times))
    if meta.clock.uncertainty_ns:
        pieces.append(f"clocks within {meta.clock.uncertainty_ns / 1e3:.0f} µs")
    return ", ".join(pieces)


def _parts(analysis: Analysis, times: StepTimes) -> tuple[Part, ...]:
    breakdown = analysis.facts.breakdown
    means, medians = mean_step(breakdown, times), median_step(breakdown, times)
    return tuple(
        Part(
            name=part,
            label=label_of(part, breakdown),
            colour=COLOURS[part],
            mean_ns=means[part],
            share=means[part] / max(times.mean_ns, 1),
            median_ns=medians[part],
        )
        for part in PARTS
    )


def _ranks(analysis: Analysis) -> tuple[RankRow, ...]:
    breakdown = analysis.facts.breakdown
    if len(breakdown.ranks) < 2 or not breakdown.knows_compute or not breakdown.step_ns.size:  # noqa: PLR2004
        return ()
    own = breakdown.own_work_ns.mean(axis=1)
    waits = np.sum([breakdown.parts_ns[part] for part in EXPOSED], axis=0).mean(axis=1)
    guilty = waited_for(analysis)
    order = np.argsort(-own, kind="stable")[:MAX_RANKS] if len(own) > MAX_RANKS else np.arange(len(own))
    return tuple(
        RankRow(
            rank=breakdown.ranks[row],
            parts_ns={name: float(breakdown.parts_ns[name][row].mean()) for name in RANK_PARTS},
            own_work_ns=float(own[row]),
            waits_ns=float(waits[row]),
            is_waited_for=breakdown.ranks[row] in guilty,
        )
        for row in order.tolist()
    )


def waited_for(analysis: Analysis) -> set[int]:
    """The ranks that others wait for; what is the matter with all of them makes nobody wait for another."""
    named = (set(item.ranks) for item in analysis.findings if item.class_ in {"straggler", "data"})
    some = [ranks for ranks in named if len(ranks) < len(analysis.facts.ranks)]
    found = set().union(*some)
    return found if len(found) < len(analysis.facts.ranks) else set()


def slow_rank(analysis: Analysis) -> int | None:
    """The rank with most own work; None where ranks cannot be compared."""
    breakdown = analysis.facts.breakdown
    if len(breakdown.ranks) < 2 or not breakdown.knows_compute or not breakdown.step_ns.size:  # noqa: PLR2004
        return None
    return int(breakdown.ranks[int(np.argmax(breakdown.own_work_ns.mean(axis=1)))])


def _waterfall(analysis: Analysis) -> tuple[Difference, ...]:
    """Part by part the slow rank's own work beside the typical rank's."""
    rank, breakdown = slow_rank(analysis), analysis.facts.breakdown
    if rank is None:
        return ()
    row = breakdown.ranks.index(rank)
    others = [number for number in range(len(breakdown.ranks)) if number != row]
    rows = []
    for part in PARTS:
        means = breakdown.parts_ns[part].mean(axis=1)
        if part in EXPOSED or not means.any():
            continue
        rows.append(
            Difference(
                part=part,
                label=label_of(part, breakdown),
                rank_ns=float(means[row]),
                typical_ns=float(np.median(means[others])),
            )
        )
    return tuple(sorted(rows, key=lambda item: -abs(item.excess_ns)))


def _waits(analysis: Analysis) -> tuple[WaitRow, ...]:
    return tuple(
        WaitRow(
            waiter=int(row["waiter"]),
            culprit=int(row["culprit"]),
            mean_ns=float(row["mean_ns"]),
            ratio=float(row["ratio"]),
        )
        for row in waits_for(analysis.facts).to_dict("records")
    )


def _path(analysis: Analysis) -> tuple[PathRow, ...]:
    return tuple(
        PathRow(
            rank=int(row["rank"]),
            part=str(row["part"]),
            mean_ns=float(row["mean_ns"]),
            share=float(row["share"]),
            steps_ratio=float(row["steps_ratio"]),
        )
        for row in analysis.critical_path.to_dict("records")
    )


def _collective(row: dict[Hashable, Any], *, knows_wait: bool) -> CollectiveRow:
    def number(name: str) -> float:
        return float(row[name])

    nbytes = int(number("bytes"))
    return CollectiveRow(
        kind=str(row["kind"]),
        size=str(row.get("label") or bytes_words(nbytes)),
        nbytes=nbytes,
        count=int(number("count")),
        median_ns=number("median_ns"),
        wait_ns=number("wait_ns"),
        transfer_ns=number("transfer_ns"),
        algbw_gbps=number("algbw_gbps"),
        busbw_gbps=number("busbw_gbps"),
        process_set=int(number("process_set")),
        tensors=number("tensors"),
        knows_wait=knows_wait,
    )


def _by_power_of_two(rows: pd.DataFrame, *, knows_wait: bool) -> tuple[CollectiveRow, ...]:
    """Few rows instead of one for every size; medians weighted by nothing but their number."""
    size_class = np.where(rows["bytes"] > 0, np.floor(np.log2(rows["bytes"].clip(lower=1))), -1).astype(int)
    grouped = rows.assign(size_class=size_class).groupby(["kind", "size_class"], observed=True)
    medians = ("median_ns", "wait_ns", "transfer_ns", "algbw_gbps", "busbw_gbps", "tensors")
    table = grouped.agg(
        bytes=("bytes", "max"),
        least=("bytes", "min"),
        count=("count", "sum"),
        total_ns=("total_ns", "sum"),
        process_set=("process_set", "min"),
        **{name: (name, "median") for name in medians},
    ).reset_index()
    table["label"] = [
        bytes_words(low) if low == high else f"{bytes_words(low)} to {bytes_words(high)}"
        for low, high in zip(table["least"], table["bytes"], strict=True)
    ]
    ordered = table.sort_values("total_ns", ascending=False, kind="stable")
    return tuple(_collective(row, knows_wait=knows_wait) for row in ordered.to_dict("records"))


def bytes_words(nbytes: int) -> str:
    """A size for a table.

    >>> bytes_words(4_000_000), bytes_words(-1)
    ('3.8 MiB', 'unknown')
    """
    if nbytes < 0:
        return "unknown"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"
