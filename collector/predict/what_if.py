"""How long a step would take if something were different: changes as people write them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...timeline.errors import UsageError
from ...timeline.vocabulary import Category
from ..facts import Facts
from .change import Change, all_of, removed
from .gain import MAX_PROMISED_RATIO, widened
from .overlap import overlapped
from .straggling import find_stragglers

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
    if facts.replay is None:
        raise UsageError("--what-if needs the ranks' computation, and this trace contains only communication")
    error = facts.replay.error_ratio
    if error > MAX_PROMISED_RATIO:
        raise UsageError(
            f"--what-if cannot predict this run: without any change, its model is {error:.0%} off the measured steps"
        )
    outcome = facts.outcome(all_of([_parse(change, facts) for change in changes]))
    return Prediction(
        change=", ".join(changes),
        step_ns=facts.mean_step_ns,
        predicted_ns=facts.mean_step_ns - outcome.mean_saved_ns,
        gain=outcome.gain,
        gain_interval=widened(outcome.gain, outcome.interval, error),
    )


Maker = Callable[[Facts, str, str, int | None], Change]


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
    if name not in _MAKERS or (row is not None and name not in {"data", "compute", "checkpoint"}):
        raise UsageError(f"--what-if {text}: write it as one of {', '.join(FORMS)}")
    return _MAKERS[name](facts, text, value, row)


def _factor(text: str, value: str) -> float:
    """`0`, `0.8x` or `80%` as a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(x|%)?", value)
    if match is None or (match[2] is None and float(match[1])):
        raise UsageError(f"--what-if {text}: a factor is needed, as 0, 0.5x or 50%")
    return float(match[1]) / (100 if match[2] == "%" else 1)


def _of_parts(parts: Sequence[str]) -> Maker:
    """Parts of the own work become so many times as long, or as long as the median rank's."""

    def make(facts: Facts, text: str, value: str, row: int | None) -> Change:
        factor = None if value == "median" else _factor(text, value)
        work: dict[str, np.ndarray] = {}
        for part in parts:
            times = facts.part(part).astype(float)
            rows = slice(None) if row is None else slice(row, row + 1)
            work[part] = np.ones(times.shape)
            if factor is not None:
                work[part][rows] = factor
            else:
                others = times if row is None or len(times) == 1 else np.delete(times, row, axis=0)
                work[part][rows] = removed(times[rows], times[rows] - np.median(others, axis=0))
        data = str(Category.DATA)
        loading = work.get(data, 1.0)
        return Change(work=work, loading=loading)

    return make


def _straggler(facts: Facts, text: str, value: str, _: int | None) -> Change:
    if value != "none":
        raise UsageError(f"--what-if {text}: write straggler=none")
    found = find_stragglers(facts)
    return found[0][1] if found else Change()


def _bandwidth(_: Facts, text: str, value: str, _row: int | None) -> Change:
    factor = _factor(text, value)
    if factor <= 0:
        raise UsageError(f"--what-if {text}: the bandwidth has to be more than 0")
    return Change(transfer=1 / factor)


def _latency(_: Facts, text: str, value: str, _row: int | None) -> Change:
    return Change(latency=_factor(text, value))


def _negotiation(_: Facts, text: str, value: str, _row: int | None) -> Change:
    return Change(negotiation=_factor(text, value))


def _fusion(facts: Facts, text: str, value: str, _: int | None) -> Change:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?b?)", value)
    unit = None if match is None else _UNITS.get(match[2] if match[2].endswith("b") or not match[2] else match[2] + "b")
    if match is None or unit is None or not float(match[1]):
        raise UsageError(f"--what-if {text}: a size is needed, as 16MB")
    nbytes = float(match[1]) * unit
    # As few collectives as carry the bytes of a step; never more than there are.
    table = facts.in_steps(facts.collectives)
    per_step = max(facts.steps.count * len(facts.ranks), 1)
    count, carried = len(table) / per_step, float(table["nbytes"].clip(lower=0).sum()) / per_step
    needed = max(1.0, float(np.ceil(carried / nbytes)))
    return Change(latency=min(1.0, needed / count)) if count else Change()


def _overlap(facts: Facts, text: str, value: str, _: int | None) -> Change:
    if value != "perfect":
        raise UsageError(f"--what-if {text}: write overlap=perfect")
    return overlapped(facts).change


_MAKERS: Final[dict[str, Maker]] = {
    "data": _of_parts((str(Category.DATA),)),
    "checkpoint": _of_parts((str(Category.CHECKPOINT),)),
    "compute": _of_parts(_COMPUTE),
    "straggler": _straggler,
    "bandwidth": _bandwidth,
    "latency": _latency,
    "negotiation": _negotiation,
    "fusion": _fusion,
    "overlap": _overlap,
}


def describe(prediction: Prediction) -> dict[str, Any]:
    """For the machine-readable report."""
    return {
        "change": prediction.change,
        "step_ns": round(prediction.step_ns),
        "predicted_ns": round(prediction.predicted_ns),
        "predicted_gain": round(prediction.gain, 4),
        "gain_interval": [round(bound, 4) for bound in prediction.gain_interval],
    }
