"""A trace's condition in sentences, the most important first."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .endings import RankEnding, Waiting
from .words import milliseconds, shorten

if TYPE_CHECKING:
    from .condition import Condition

#: With fewer analysed steps numbers are rough.
MIN_STEPS: Final = 10
#: Ranks and errors that a sentence names.
MAX_NAMED_RANKS: Final = 6
MAX_ERROR_LENGTH: Final = 160


def describe(condition: "Condition") -> tuple[str, ...]:
    """What has to be known before anything else; () for a complete run and trace."""
    return tuple(_sentences(condition))


def seconds(time_ns: int) -> str:
    """A moment of the run.

    >>> seconds(12_340_000_000)
    '12.3 s'
    """
    return f"{time_ns / 1e9:.1f} s"


def of_ranks(ranks: Sequence[int]) -> str:
    """Ranks inside a sentence.

    >>> of_ranks([1]), of_ranks([0, 2])
    ('rank 1', 'ranks 0, 2')
    """
    shown = ", ".join(map(str, ranks[:MAX_NAMED_RANKS])) + (", …" if len(ranks) > MAX_NAMED_RANKS else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _sentences(condition: "Condition") -> Iterator[str]:
    if condition.ending == "hung":
        yield _hung(condition)
    elif condition.ending == "ended-early":
        yield _ended_early(condition)
    elif condition.ending == "running":
        yield "The run had not ended when this was read: no file has an end yet."
    if condition.is_incomplete:
        here = of_ranks(condition.recorded_ranks)
        is_one = len(condition.recorded_ranks) == 1
        what = "ranks cannot be compared" if is_one else "the others may be slower or quicker than these"
        yield (
            f"{condition.missing_ranks} of {condition.size} ranks have no file here (only {here} {'is' if is_one else 'are'}): "
            f"{what}."
        )
    if len(condition.recorded_ranks) > 1 and not condition.can_compare_times:
        yield _clocks(condition)
    if 0 < condition.steps < MIN_STEPS:
        few = "1 step" if condition.steps == 1 else f"{condition.steps} steps"
        yield f"Only {few} could be analysed: the numbers are rough."
    if condition.recorded_steps_ratio < 1:
        yield f"Only {condition.recorded_steps_ratio:.0%} of the steps were recorded; numbers are those of the recorded ones."
    yield from _load(condition)


def _hung(condition: "Condition") -> str:
    ends = condition.endings
    last = max(ends, key=lambda end: end.last_ns)
    silence_ns = max(end.alive_ns for end in ends) - last.last_ns
    until = f", for {seconds(silence_ns)} until the files end" if silence_ns else ""
    stuck = [end for end in ends if end.rank in condition.blamed_ranks]
    return (
        f"The run hung{_in_step(stuck or ends)}: nothing happens after {seconds(last.last_ns)}{until}"
        f"{_last_activities(stuck)}{_waits(condition)}."
    )


def _ended_early(condition: "Condition") -> str:
    ends = condition.endings
    blamed = [end for end in ends if end.rank in condition.blamed_ranks] or list(ends)
    failed = [end for end in blamed if end.how == "failed"] or [end for end in ends if end.how == "failed"]
    if failed:
        first = min(failed, key=lambda end: end.last_ns)
        what = f"{of_ranks([first.rank])} failed at {seconds(first.last_ns)}{_in_step([first])}{_doing(first)}"
        return f"The run ended early: {what}: {shorten(first.error, MAX_ERROR_LENGTH).rstrip('.')}."
    if all(end.how == "unknown" for end in ends):
        return f"The run ended early: the file stops at {seconds(condition.ended_ns)} while tensors wait{_waits(condition)}."
    if len(blamed) < len(ends):
        first = min(blamed, key=lambda end: end.last_ns)
        others = "" if len(blamed) == 1 else f" (of {of_ranks([end.rank for end in blamed])} the first)"
        what = f"{of_ranks([first.rank])}'s file{others} stops at {seconds(first.last_ns)}{_in_step([first])}{_doing(first)}"
        end = ", without an end" if first.how == "cut" else ""
        return f"The run ended early: {what}{end}{_waits(condition)}."
    first, last = min(ends, key=lambda end: end.last_ns), max(ends, key=lambda end: end.last_ns)
    if first.how == "closed":
        return f"The run ended early: all files are closed at {seconds(last.last_ns)} while tensors wait{_waits(condition)}."
    if len(ends) == 1:
        here = (
            f"the file of {of_ranks([first.rank])} stops at {seconds(first.last_ns)}{_in_step([first])}{_doing(first)}"
        )
        return f"The run ended early: {here}, without an end{_waits(condition)}."
    return (
        f"The run ended early: no file has an end, so the ranks were killed or crashed; rank {first.rank}'s stops first, at "
        f"{first.last_ns / 1e9:.2f} s{_in_step([first])}{_doing(first)}, rank {last.rank}'s last, at "
        f"{last.last_ns / 1e9:.2f} s{_in_step([last])} (up to half a second of each is lost){_waits(condition)}."
    )


def _in_step(ends: Sequence[RankEnding]) -> str:
    steps = {end.last_step + 1 for end in ends if end.last_step >= 0}
    return f" in step {min(steps)}" if steps else ""


def _doing(end: RankEnding) -> str:
    if not end.activity:
        return ""
    return f", in {end.activity}" if end.is_inside else f", after {end.activity}"


def _last_activities(stuck: Sequence[RankEnding]) -> str:
    known = [end for end in stuck if end.activity]
    if not known:
        return ""
    first = known[0]
    if first.is_inside:
        return f"; rank {first.rank} is in {first.activity}"
    return f"; rank {first.rank}'s last activity is {first.activity}, which ends at {seconds(first.last_ns)}"


def _waits(condition: "Condition") -> str:
    """Who waited for what, and for whom."""
    told = [_wait(item, condition) for item in condition.waiting[:2]]
    return "; " + "; ".join(told) if told else ""


def _wait(item: Waiting, condition: "Condition") -> str:
    more = f" and {item.count - 1} more" if item.count > 1 else ""
    what = f"{shorten(item.tensor)}{more}"
    who = of_ranks(item.by) if item.by else "some rank"
    verb = "waits" if len(item.by) <= 1 else "wait"
    since = f"from {seconds(item.since_ns)} on "
    if item.missing:
        never = f", which {of_ranks(item.missing)} never asked for"
    elif item.all_asked:
        never = ", which all have asked for, and which does not come to its end"
    elif condition.is_incomplete:
        never = ", which a rank without a file here has not asked for"
    else:
        never = "; which rank has not asked for it the file does not say"
    return f"{who} {verb} {since}for {what}{never}"


def _clocks(condition: "Condition") -> str:
    if condition.clock_method == "none":
        return "The ranks' clocks are not aligned: how long each rank takes can be compared, not what they do at the same time."
    return (
        f"The ranks' clocks are known to {milliseconds(condition.clock_uncertainty_ns)} only, too little to order what ranks do "
        "within a step."
    )


def _load(condition: "Condition") -> Iterator[str]:
    load = condition.load
    if load is None or not load.is_heavy:
        return
    parts = []
    if load.others_ratio:
        parts.append(f"processes other than the ranks had {load.others_ratio:.0%} of its cores")
    if load.starved_ratio:
        parts.append(f"a training thread was ready to run and had no core for {load.starved_ratio:.0%} of the time")
    yield f"The host was loaded: {', and '.join(parts)}."
