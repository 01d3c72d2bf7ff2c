"""How long a step would take if something were different.

Reads changes as people write them and applies them to a replay of the run (replay.py).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...timeline.errors import UsageError
from ...timeline.vocabulary import Category
from ..model.facts import Facts
from .gain import gain_of
from .replay_old import Replay, replay

_COMPUTE: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.OTHER)))
_MIB: Final = 1024 * 1024
_UNITS: Final = {"": 1, "b": 1, "kb": 1024, "mb": _MIB, "gb": 1024 * _MIB}

#: What may be written, for help and error messages.
FORMS: Final = (
    "data=0",
    "straggler=none",
    "bandwidth=2x",
    "latency=0.5x",
    "negotiation=0",
    "fusion=16MB",
    "compute=0.8x",
    "compute[rank3]=median",
    "checkpoint=0",
    "overlap=perfect",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a step would take."""

    change: str
    step_ns: float
    """Mean, as it was."""
    predicted_ns: float
    gain: float
    """Share of the step time that would go."""
    gain_interval: tuple[float, float]


def predict(facts: Facts, changes: Sequence[str]) -> Prediction:
    """What a step would take with all `changes` together.

    Args:
        changes: as in FORMS.

    Raises:
        UsageError: a change cannot be understood, or the trace has no steps.
    """
    if not facts.steps.count:
        raise UsageError("--what-if needs steps, and this trace has none")
    if not facts.breakdown.knows_compute:
        raise UsageError("--what-if needs to know what the ranks compute, and this trace shows communication only")
    parsed = [_parse(change, facts) for change in changes]
    model = replay(facts)
    for apply in parsed:
        apply(model)
    step_ns = float(model.before.mean())
    gain, interval = gain_of(model.saved_ns, step_ns)
    return Prediction(
        change=", ".join(changes),
        step_ns=step_ns,
        predicted_ns=float(model.step.mean()),
        gain=gain,
        gain_interval=interval,
    )


Change = Callable[[Replay], None]


def _parse(text: str, facts: Facts) -> Change:
    key, equals, value = text.replace(" ", "").partition("=")
    match = re.fullmatch(r"([a-z]+)(?:\[rank(\d+)\])?", key.lower())
    if not equals or match is None or not value:
        raise UsageError(f"--what-if {text}: write it as one of {', '.join(FORMS)}")
    name, rank, value = match[1], match[2], value.lower()
    row = None
    if rank is not None:
        if int(rank) not in facts.ranks:
            raise UsageError(f"--what-if {text}: this trace has ranks {list(facts.ranks)}")
        row = facts.ranks.index(int(rank))
    makers: dict[str, Callable[[str, str, int | None], Change]] = {
        "data": lambda *given: _of_parts((str(Category.DATA),), *given),
        "checkpoint": lambda *given: _of_parts((str(Category.CHECKPOINT),), *given),
        "compute": lambda *given: _of_parts(_COMPUTE, *given),
        "straggler": _straggler,
        "bandwidth": _bandwidth,
        "latency": _latency,
        "negotiation": _negotiation,
        "fusion": _fusion,
        "overlap": _overlap,
    }
    if name not in makers or (row is not None and name not in {"data", "compute", "checkpoint"}):
        raise UsageError(f"--what-if {text}: write it as one of {', '.join(FORMS)}")
    return makers[name](text, value, row)


def _factor(text: str, value: str) -> float:
    """`0`, `0.8x` or `80%` as a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(x|%)?", value)
    if match is None or (match[2] is None and float(match[1])):
        raise UsageError(f"--what-if {text}: a factor is needed, as 0, 0.5x or 50%")
    return float(match[1]) / (100 if match[2] == "%" else 1)


def _of_parts(parts: Sequence[str], text: str, value: str, row: int | None) -> Change:
    """Parts of the own work become so many times as long, or as long as the median rank's."""
    factor = None if value == "median" else _factor(text, value)

    def apply(model: Replay) -> None:
        if factor is not None:
            model.scale_work(parts, factor, row)
            return
        for part in parts:
            times = model.work.get(part)
            if times is not None:
                rows = slice(None) if row is None else slice(row, row + 1)
                others = times if row is None or len(times) == 1 else np.delete(times, row, axis=0)
                times[rows] = np.minimum(times[rows], np.median(others, axis=0))

    return apply


def _straggler(text: str, value: str, _: int | None) -> Change:
    if value != "none":
        raise UsageError(f"--what-if {text}: write straggler=none")
    return Replay.remove_stragglers


def _bandwidth(text: str, value: str, _: int | None) -> Change:
    factor = _factor(text, value)
    if factor <= 0:
        raise UsageError(f"--what-if {text}: the bandwidth has to be more than 0")
    return lambda model: model.scale_transfer(1 / factor)


def _latency(text: str, value: str, _: int | None) -> Change:
    factor = _factor(text, value)
    return lambda model: model.scale_latency(factor)


def _negotiation(text: str, value: str, _: int | None) -> Change:
    factor = _factor(text, value)
    return lambda model: model.scale_negotiation(factor)


def _fusion(text: str, value: str, _: int | None) -> Change:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?b?)", value)
    unit = None if match is None else _UNITS.get(match[2] if match[2].endswith("b") or not match[2] else match[2] + "b")
    if match is None or unit is None or not float(match[1]):
        raise UsageError(f"--what-if {text}: a size is needed, as 16MB")
    nbytes = float(match[1]) * unit

    def apply(model: Replay) -> None:
        # As few collectives as carry the bytes of a step; never more than there are.
        needed = max(1.0, np.ceil(model.cost.nbytes / nbytes))
        if model.cost.count > needed:
            model.scale_latency(needed / model.cost.count)

    return apply


def _overlap(text: str, value: str, _: int | None) -> Change:
    if value != "perfect":
        raise UsageError(f"--what-if {text}: write overlap=perfect")
    return Replay.overlap_perfectly


def describe(prediction: Prediction) -> dict[str, Any]:
    """For the machine-readable report."""
    return {
        "change": prediction.change,
        "step_ns": round(prediction.step_ns),
        "predicted_ns": round(prediction.predicted_ns),
        "predicted_gain": round(prediction.gain, 4),
        "gain_interval": [round(bound, 4) for bound in prediction.gain_interval],
    }
