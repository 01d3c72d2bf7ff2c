"""What a tuning has found, as a table and the command to use, and as JSON."""

import shlex
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...timeline.commands.arguments import clean
from ..model.words import milliseconds
from .jobs import environment_with
from .losses import Comparison
from .outcome import Kept, Together, Tried
from .session import Findings, Wishes
from .settings import Candidate

SCHEMA: Final = "tlkit.tuning/1"

_NOTHING: Final = "No setting gains anything that is more than chance: the command is best as it is."


def use(kept: list[Tried], wishes: Wishes) -> tuple[dict[str, str], str]:
    """Variables that make the kept settings hold, and the command with them as people type it."""
    candidates = [one.candidate for one in kept]
    command = wishes.command.shown(mpi=any(candidate.mpi for candidate in candidates))
    variables = environment_with(candidates, {}) if candidates else {}
    set_ = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return variables, f"{set_} {command}".strip()


def render(found: Findings, wishes: Wishes, console: Console) -> None:
    """Print everything."""
    analysis = found.analysis
    if analysis is not None:
        console.print(Text(f"As it is: {clean(analysis.verdict.sentence)}"))
        console.print()
    if found.tried:
        console.print(_table(found, wishes))
        console.print()
    for note in found.notes:
        console.print(Text(f"note: {clean(note)}"))
    if found.interrupted:
        console.print(Text(f"Interrupted after {found.jobs} jobs: this is what was known by then."))
    kept = found.kept(allow_lossy=wishes.allow_lossy)
    if not kept:
        if analysis is not None:
            verdicts = {one.verdict(allow_lossy=wishes.allow_lossy)[0] for one in found.tried}
            is_whole = not found.interrupted and Kept.OPEN not in verdicts
            console.print(
                Text(_NOTHING if is_whole else "Nothing is kept so far: more time (--minutes) may tell more.")
            )
    else:
        _render_kept(found, kept, wishes, console)
    console.print(Text(f"{found.jobs} jobs, {found.seconds / 60:.1f} minutes.", style="dim"))


def _render_kept(found: Findings, kept: list[Tried], wishes: Wishes, console: Console) -> None:
    together = found.together
    if together is not None and together.gains:
        console.print(Text(_together_sentence(together)))
    _, line = use(kept, wishes)
    console.print(Text("Use it:"))
    console.print(Text(f"  {clean(line)}"), soft_wrap=True)
    console.print(Text("or, for good: " + "; ".join(one.candidate.script for one in kept)))


def _together_sentence(together: Together) -> str:
    names = " + ".join(candidate.label for candidate in together.candidates)
    gain = median(together.gains)
    sure = "" if together.is_worth_it else " (may be chance)"
    text = f"{names}: {gain:.0%} less time a step{_interval(together.bounds)}{sure}"
    if together.steps_ns is not None:
        text += f", {milliseconds(together.steps_ns[0])} → {milliseconds(together.steps_ns[1])}"
    if together.predicted is not None:
        text += f"; predicted {together.predicted:.0%}"
    return text + "."


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f" [{bounds[0]:.0%}, {bounds[1]:.0%}]"


def _table(found: Findings, wishes: Wishes) -> Table:
    table = Table("setting", "predicted", "measured", "kept", "why", box=None, header_style="bold")
    for one in found.tried:
        kept, why = one.verdict(allow_lossy=wishes.allow_lossy)
        measured = "" if one.gain is None else f"{one.gain:.0%}{_interval(one.bounds)}"
        predicted = "" if one.candidate.predicted is None else f"{one.candidate.predicted:.0%}"
        style = "bold" if kept is Kept.KEPT else None
        table.add_row(one.candidate.label, predicted, measured, str(kept), Text(clean(why)), style=style)
    return table


def to_json(found: Findings, wishes: Wishes) -> dict[str, Any]:
    """The same for programs, `tlkit.tuning/1`.  Gains are shares of the step time; times are ns."""
    kept = found.kept(allow_lossy=wishes.allow_lossy)
    variables, line = use(kept, wishes)
    analysis, together = found.analysis, found.together
    return {
        "schema": SCHEMA,
        "command": list(wishes.command.words),
        "ranks": wishes.command.np,
        "steps_per_trial": found.steps,
        "seed": wishes.seed,
        "interrupted": found.interrupted,
        "jobs": found.jobs,
        "seconds": round(found.seconds, 1),
        "notes": found.notes,
        "baseline": {
            "step_ns": round(median(found.baseline_ns)) if found.baseline_ns else None,
            "verdict": None
            if analysis is None
            else {"cause": analysis.verdict.cause, "sentence": analysis.verdict.sentence},
        },
        "tried": [_one(one, wishes) for one in found.tried],
        "together": None
        if together is None
        else {
            "settings": [candidate.label for candidate in together.candidates],
            "predicted_gain": _rounded(together.predicted),
            "measured_gain": _rounded(median(together.gains)) if together.gains else None,
            "gain_interval": _bounds(together.bounds),
            "pairs": len(together.gains),
            "is_more_than_chance": together.is_worth_it,
            "step_ns": None if together.steps_ns is None else [round(ns) for ns in together.steps_ns],
            "losses": _losses(together.losses),
            "failed": together.failed,
        },
        "use": {
            "settings": [one.candidate.label for one in kept],
            "environment": variables,
            "flags": ["--mpi"] if any(one.candidate.mpi for one in kept) else [],
            "command": line,
            "script": [one.candidate.script for one in kept],
        },
    }


def _one(one: Tried, wishes: Wishes) -> dict[str, Any]:
    kept, why = one.verdict(allow_lossy=wishes.allow_lossy)
    candidate: Candidate = one.candidate
    return {
        "setting": candidate.name,
        "value": candidate.value,
        "environment": environment_with([candidate], {}),
        "flags": ["--mpi"] if candidate.mpi else [],
        "script": candidate.script,
        "cause": None if candidate.finding is None else candidate.finding.cause,
        "predicted_gain": _rounded(candidate.predicted),
        "measured_gain": _rounded(one.gain),
        "gain_interval": _bounds(one.bounds),
        "gains": [round(gain, 4) for gain in one.gains],
        "how": str(one.how),
        "losses": _losses(one.losses),
        "kept": str(kept),
        "why": why,
    }


def _losses(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    difference = comparison.difference
    return {
        "verdict": comparison.verdict,
        "largest_relative_difference": None if difference == float("inf") else difference,
        "at_step": comparison.step,
        "runs_without_it_agree": comparison.repeats,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _bounds(bounds: tuple[float, float] | None) -> list[float] | None:
    return None if bounds is None else [round(bound, 4) for bound in bounds]
