"""Whether a diagnosis is right about a case."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .cases import Case, class_of
from .device import NCCL, DeviceRecording
from .fault_kinds import KINDS
from .faults import ALWAYS, GROWING, Fault

#: A finding that promises no more is none.
WORTH_GAIN: Final = 0.05
#: Between these gains a run may be called healthy or not.
GREY_GAINS: Final = (0.03, 0.07)
#: A gain whose interval is wider is told with doubt.
SURE_WIDTH: Final = 0.3
ROUNDING: Final = 0.005
#: Findings that promise what halving the bytes, hiding them, or another transport gains, whatever has made them slow.
OTHER_REMEDIES: Final = {"bandwidth-bound", "exposed-communication", "exposed-nccl", "wrong-backend"}
#: Collectives of which none has so many times the bytes of another do not tell latency from bytes.
ALIKE: Final = 2.0
#: So few collectives a step do not show which gradients are late.
FEW: Final = 2
#: Of two faults whose gains differ by no more, either may come first.
EQUAL_GAINS: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A finding of the diagnosis, by what it shows to anybody."""

    class_: str
    cause: str
    ranks: tuple[int, ...]
    gain: float
    part: str = ""
    """Where the ranks are slow, of a finding that names no part in its cause."""
    interval: tuple[float, float] = (0.0, 1.0)
    """Of the gain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Of one case."""

    seed: int
    kind: str
    """Kinds of its faults, or "healthy"."""
    format: str
    expected: str
    found: str
    is_right: bool
    class_right: bool
    ranks_right: bool
    cause_right: bool
    gain: float
    """True one, of the fault that was found."""
    promised: float
    is_healthy: bool
    """By the truth."""
    is_doubt: bool = False
    """Nothing was promised, the verdict was "unknown", and the file cannot tell: which is right."""
    interval: tuple[float, float] = (0.0, 1.0)
    """Of what was promised."""
    is_other_remedy: bool = False
    """What was promised is not that the fault goes, but what another remedy gains."""
    plan_right: bool | None = None
    """Whether the plan names both of two faults that are both worth a change; None where there are no two, or no plan."""
    plan_error: float | None = None
    """How far what the whole plan promises is from what is gained without any fault, in points."""

    @property
    def gain_error(self) -> float:
        """In points; of another remedy, what it promises above what there is to gain."""
        over = self.promised - self.gain
        return 100 * (max(over, 0.0) if self.is_other_remedy else abs(over))

    @property
    def is_sure(self) -> bool:
        """Whether the gain was told without a wide interval."""
        return self.interval[1] - self.interval[0] <= SURE_WIDTH

    @property
    def holds_gain(self) -> bool:
        """Whether the true gain lies in the interval."""
        return self.interval[0] - ROUNDING <= self.gain <= self.interval[1] + ROUNDING


def plain_cause(cause: str) -> str:
    """A cause without the words for when and where.

    >>> plain_cause("periodic-slow-forward"), plain_cause("slow-loader-on-some-ranks")
    ('slow-forward', 'slow-loader')
    """
    return cause.removeprefix("periodic-").removesuffix("-on-some-ranks")


def _is_hidden(fault: Fault, case: Case) -> bool:
    """Whether nothing in the file tells of it.

    Rank 0's lateness is like that of all in Horovod's own file, without ready ticks.  Ranks that all lack cores in all steps
    look like a larger model in a profile on processors, which has no counters.
    """
    if case.file_format == "kineto" and fault.kind == "starved":
        return fault.is_everywhere and fault.pattern == ALWAYS
    is_horovod = case.file_format == "horovod" and case.job.has_cache
    return is_horovod and bool(KINDS[fault.kind].somewhere) and 0 in fault.ranks


def _cannot_tell(fault: Fault, case: Case) -> bool:
    """Whether the file does not show this fault for certain: who is late, or how long a cycle is, without ticks."""
    is_wait = bool(KINDS[fault.kind].somewhere) or fault.kind in _SLOW_AGREEMENT
    return case.file_format == "horovod" and case.job.has_cache and is_wait


def _is_hidden_loader(fault: Fault, gain: float, case: Case) -> bool:
    """Whether a loader keeps up only because the other fault holds up the training: profiles do not show its workers."""
    is_loader = KINDS[fault.kind].everywhere == "data" and fault.kind != "exposed-copies"
    return case.file_format in {"kineto", "gpu"} and is_loader and case.job.workers > 0 and gain < GREY_GAINS[0]


#: A network that carries more than this (bytes a ns: a gigabit a second) is not slow by itself.
VISIBLY_SLOW: Final = 0.125
#: Horovod's file shows that agreement takes long, not whether a cycle or a message does.
_SLOW_AGREEMENT: Final = {"slow-negotiation", "long-cycle"}
#: In which parts of a step a fault of ranks that change may show.
_PARTS: Final = {
    "slow-forward": ("forward",),
    "slow-backward": ("backward",),
    "slow-optimizer": ("optimizer",),
    "slow-loop": ("other",),
    "garbage": ("forward",),
    "starved": ("forward", "backward"),
    "uneven-batches": ("forward", "backward"),
    "slow-gpu": ("forward", "backward"),
}


def _are_sizes_alike(case: Case) -> bool:
    """Whether the gradients' collectives all carry about as many bytes: then none shows what a collective of few would take."""
    first = case.recording.ranks[0]
    if isinstance(first, DeviceRecording):
        sizes = [kernel.launch.nbytes for kernel in first.kernels if kernel.launch.kind == NCCL]
    else:
        sizes = [
            sum(carried.tensor.nbytes for carried in executed.carried)
            for executed in first.executed
            if executed.carried[0].tensor.is_gradient
        ]
    return bool(sizes) and max(sizes) < ALIKE * min(sizes)


def _collectives_a_step(case: Case) -> float:
    """Collectives of gradients, of a run without devices."""
    executed = [one for one in case.recording.ranks[0].executed if one.carried[0].tensor.is_gradient]
    return len(executed) / case.job.steps


def _fits(found: Found, fault: Fault, case: Case) -> tuple[bool, bool, bool]:
    """Class, ranks, cause."""
    kind = KINDS[fault.kind]
    if _is_hidden(fault, case):
        return (found.class_ in {"straggler", "compute", "data"},) * 3
    everyone = set(range(case.job.ranks))
    named = set(found.ranks) or everyone
    is_random = fault.kind == "uneven-batches" and fault.is_everywhere
    ranks_right = not kind.names_ranks or is_random or named == set(fault.ranks)
    if case.file_format == "horovod" and kind.somewhere and case.job.has_cache:  # who is late is not in the file
        ranks_right = not found.ranks or named >= set(fault.ranks)
    is_horovod = case.file_format == "horovod"
    late = {rank for one in case.truth.faults if KINDS[one.kind].somewhere for rank in one.ranks}
    if is_horovod and kind.somewhere and named == late:  # who is late is in the file, and not with what
        ranks_right = True
    causes = {"late-rank"} if is_horovod and kind.somewhere else set()
    # Several workers of a loader hand over their batches together, and then none for as many steps.
    in_groups = fault.kind == "slow-dataset" and case.job.workers > 1
    if is_horovod and kind.somewhere and (fault.pattern not in {ALWAYS, GROWING} or in_groups):
        causes.add("late-in-some-steps")
    if is_horovod and fault.kind in _SLOW_AGREEMENT:
        if case.job.has_cache and found.cause == "late-rank":  # without ticks a late rank looks the same; none is named
            return found.class_ == "straggler", not found.ranks, True
        causes |= {*_SLOW_AGREEMENT, "high-latency"}  # the answer travels within the collective's time
    causes |= {*kind.causes, *(kind.causes_everywhere if fault.is_everywhere else ())}
    # Before its first operator nothing says that backward has begun.
    is_unmarked = case.file_format == "kineto" and fault.kind == "slow-backward" and fault.is_blocked
    if fault.changes_ranks and found.cause == "stragglers-in-turn":
        parts = (*_PARTS.get(fault.kind, ()), *(("other",) if is_unmarked else ()))
        return found.class_ == class_of(fault, case.file_format), ranks_right, found.part in parts
    if case.file_format in {"kineto", "gpu"} and fault.kind == "huge-tensor":
        causes |= {"exposed-communication", "exposed-nccl"}  # a profile names no tensors
    if case.file_format == "kineto" and fault.kind == "late-gradients" and _collectives_a_step(case) <= FEW:
        causes.add("exposed-communication")  # the last of one or two comes late anyway, and nobody knows its size
    if is_unmarked:
        causes |= {"slow-host-code", "host-code"}
    if fault.kind == "slow-link" and (case.job.bytes_per_ns > VISIBLY_SLOW or case.file_format == "kineto"):
        causes |= {"oversize-gradient", "late-gradients"}  # too many bytes for the network, or nobody knows how many
    if fault.kind == "high-latency" and _are_sizes_alike(case):
        causes.add("bandwidth-bound")
    return (
        found.class_ == class_of(fault, case.file_format),
        ranks_right,
        found.cause in causes or plain_cause(found.cause) in causes,
    )


def _candidates(case: Case) -> list[int]:
    """Faults that may be named first: those that gain most, of those that the file shows."""
    truth = case.truth
    shown = [
        gain for fault, gain in zip(truth.faults, truth.gains, strict=True) if not _is_hidden(fault, case)
    ] or truth.gains
    most = max(shown, default=0.0)
    return [number for number, gain in enumerate(truth.gains) if gain >= most - EQUAL_GAINS]


def _judge_plan(case: Case, plan: Sequence[Found]) -> tuple[bool | None, float | None]:
    """Whether the plan names both faults, and how far what it promises is off (points)."""
    truth = case.truth
    if len(truth.faults) != 2 or case.file_format == "horovod":
        return None, None
    if any(_is_hidden_loader(fault, gain, case) for fault, gain in zip(truth.faults, truth.gains, strict=True)):
        return None, None
    # What each gains when the other is gone already, or when it is not.
    worth = [max(truth.gains[number], truth.gain - truth.gains[1 - number]) for number in range(2)]
    if min(worth) < GREY_GAINS[1]:
        return None, None
    named = all(any(all(_fits(step, fault, case)) for step in plan) for fault in truth.faults)
    return named, 100 * abs(sum(step.gain for step in plan) - truth.gain)


def judge(
    case: Case, findings: Sequence[Found], *, is_unknown: bool = False, plan: Sequence[Found] | None = None
) -> Verdict:
    """Compare the top finding with the truth.

    Args:
        findings: largest gain first; healthy and unknown are no findings.
        is_unknown: the verdict says that the trace cannot tell.
        plan: what to change first, and then, each with what it gains after those before; None to leave it unjudged.
    """
    truth = case.truth
    top = next((found for found in findings if found.gain > WORTH_GAIN), None)
    said = "healthy" if top is None else f"{top.class_}: {top.cause} {_short(top.ranks)} {top.gain:.0%}"
    expected = "; ".join(
        f"{class_of(fault, case.file_format)}: {fault.describe()} = {gain:.1%}"
        for fault, gain in zip(truth.faults, truth.gains, strict=True)
    )
    if len(truth.faults) > 1:
        expected += f"; both {truth.gain:.1%}"
    # A fault that hides behind another one gains nothing alone.
    most = max([*truth.gains, truth.gain], default=0.0)
    is_healthy = most < GREY_GAINS[0]
    fits, gain = (False, False, False), most
    if top is not None and truth.faults:
        fits, gain = _best_fit(top, case)
    if top is None:
        fits = (
            most <= GREY_GAINS[1] or any(_is_hidden(truth.faults[number], case) for number in _candidates(case)),
        ) * 3
    candidates = [truth.faults[number] for number in _candidates(case)]
    is_doubt = top is None and is_unknown and not all(fits) and any(_cannot_tell(fault, case) for fault in candidates)
    if is_doubt:
        fits = (True, True, True)
        said = "unknown"
    is_right = all(fits)
    plan_right, plan_error = (None, None) if plan is None else _judge_plan(case, plan)
    return Verdict(
        seed=case.seed,
        kind=" + ".join(fault.kind for fault in truth.faults) or "healthy",
        format=case.file_format,
        expected=expected or "healthy",
        found=said,
        is_right=is_right,
        class_right=fits[0],
        ranks_right=fits[0] and fits[1],
        cause_right=fits[0] and fits[2],
        gain=gain,
        promised=top.gain if top is not None else 0.0,
        is_healthy=is_healthy,
        is_doubt=is_doubt,
        interval=top.interval if top is not None else (0.0, 0.0),
        is_other_remedy=top is not None and top.cause in OTHER_REMEDIES,
        plan_right=plan_right,
        plan_error=plan_error,
    )


def _best_fit(top: Found, case: Case) -> tuple[tuple[bool, bool, bool], float]:
    """How well the finding fits the fault that it fits best, and that fault's gain."""
    truth = case.truth
    if max(truth.gains) < GREY_GAINS[0]:
        if truth.gain <= GREY_GAINS[0]:
            return (False, False, False), truth.gain
        # Only both together gain: any of them is right, and so are both.
        either = [_fits(top, fault, case) for fault in truth.faults]
        union = {rank for fault in truth.faults for rank in fault.ranks}
        is_class, is_cause = any(fit[0] for fit in either), any(fit[0] and fit[2] for fit in either)
        return (is_class, not top.ranks or set(top.ranks) <= union, is_cause), truth.gain
    fits = {number: _fits(top, truth.faults[number], case) for number in _candidates(case)}
    best = max(fits, key=lambda number: (sum(fits[number]), truth.gains[number]))
    return fits[best], truth.gains[best]


def _short(ranks: tuple[int, ...]) -> str:
    return f"ranks {','.join(map(str, ranks[:6]))}{'…' if len(ranks) > 6 else ''}"


def as_found(finding: Any) -> Found:
    """What `tlkit.collector` found, as far as it is judged."""
    parts = finding.evidence.get("excess_by_category_ns") or {}
    return Found(
        class_=finding.class_,
        cause=finding.cause,
        ranks=tuple(finding.ranks),
        gain=float(finding.predicted_gain),
        part=max(parts, key=parts.__getitem__) if parts else "",
        interval=finding.gain_interval,
    )
