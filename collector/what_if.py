"""How long a step would take if something were different.

The model of a synchronous step: it lasts as long as the own work of the slowest rank, plus a tail in which even that rank waits
for communication.  A change makes parts of the own work or of the tail shorter; the step is then put together anew, step by step,
so that another rank may become the slowest one.

Tails are divided by kind: what moves bytes (a latency for each collective, and the rest in proportion to its bytes), and what
negotiates.  Latency and bandwidth are taken from the collectives of the run: the line through their transfer times over bytes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..timeline.errors import UsageError
from ..timeline.vocabulary import Category
from .breakdown import EXPOSED, IDLE
from .facts import Facts
from .findings.base import gain_of

Matrix = np.ndarray
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


@dataclass(slots=True)
class _Model:
    """A run that changes are applied to; arrays are float[rank, step] and float[step], ns."""

    facts: Facts
    work: dict[str, Matrix]
    """Own work by part."""
    latency: Matrix
    """Of the tail: what collectives cost however few bytes they carry."""
    transfer: Matrix
    negotiation: Matrix
    collectives_per_step: float
    bytes_per_step: float

    @property
    def step(self) -> Matrix:
        """Duration of each step."""
        own = np.sum(list(self.work.values()), axis=0)
        total: Matrix = own.max(axis=0) + self.latency + self.transfer + self.negotiation
        return total


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
    model = _model(facts)
    before = model.step
    for apply in parsed:
        apply(model)
    after = model.step
    gain, interval = gain_of(before - after, float(before.mean()))
    return Prediction(
        change=", ".join(changes),
        step_ns=float(before.mean()),
        predicted_ns=float(after.mean()),
        gain=gain,
        gain_interval=interval,
    )


def _model(facts: Facts) -> _Model:
    breakdown = facts.breakdown
    work = {name: values.astype(float) for name, values in breakdown.parts_ns.items() if name not in EXPOSED}
    if breakdown.on_device:
        # A device that is idle waits for its own host.
        work[IDLE] = breakdown.parts_ns[IDLE].astype(float)
    own = np.sum(list(work.values()), axis=0)
    tail = np.maximum(breakdown.step_ns.max(axis=0) - own.max(axis=0), 0.0)
    moving = np.sum([facts.on_critical_rank(str(part)) for part in (Category.COLLECTIVE, Category.FUSION)], axis=0)
    asking_parts = [str(Category.NEGOTIATE), str(Category.QUEUE), *([] if breakdown.on_device else [IDLE])]
    asking = np.sum([facts.on_critical_rank(part) for part in asking_parts], axis=0)
    share = np.divide(moving, moving + asking, out=np.ones_like(moving), where=moving + asking > 0)
    latency_ns, count, nbytes, spent_ns = _cost_of_collectives(facts)
    of_latency = min(latency_ns * count / spent_ns, 1.0) if spent_ns else 0.0
    return _Model(
        facts=facts,
        work=work,
        latency=tail * share * of_latency,
        transfer=tail * share * (1 - of_latency),
        negotiation=tail * (1 - share),
        collectives_per_step=count,
        bytes_per_step=nbytes,
    )


def _cost_of_collectives(facts: Facts) -> tuple[float, float, float, float]:
    """Latency of one collective (ns); collectives, bytes, and time spent moving them (ns) in a step of a rank."""
    table = facts.in_steps(facts.collectives)
    table = table[(table["kind"] != "barrier") & (table["nbytes"] >= 0)]
    if table.empty:
        return 0.0, 0.0, 0.0, 0.0
    per_step = facts.steps.count * len(facts.ranks)
    nbytes, time_ns = table["nbytes"].to_numpy(dtype=float), table["transfer_ns"].to_numpy(dtype=float)
    by_size = table.groupby("nbytes")["transfer_ns"].median()
    sizes, medians = by_size.index.to_numpy(dtype=float), by_size.to_numpy(dtype=float)
    latency = float(medians.min())
    if len(sizes) > 2 and sizes.max() > 4 * max(sizes.min(), 1.0):  # noqa: PLR2004  a line needs some distance
        slope, intercept = np.polyfit(sizes, medians, 1)
        if slope > 0:
            latency = float(np.clip(intercept, 0.0, medians.min()))
    return latency, len(table) / per_step, float(nbytes.sum()) / per_step, float(time_ns.sum()) / per_step


Change = Callable[[_Model], None]


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

    def apply(model: _Model) -> None:
        for part in parts:
            times = model.work.get(part)
            if times is None:
                continue
            rows = slice(None) if row is None else slice(row, row + 1)
            if factor is None:
                others = times if row is None or len(times) == 1 else np.delete(times, row, axis=0)
                times[rows] = np.minimum(times[rows], np.median(others, axis=0))
            else:
                times[rows] *= factor

    return apply


def _straggler(text: str, value: str, _: int | None) -> Change:
    if value != "none":
        raise UsageError(f"--what-if {text}: write straggler=none")

    def apply(model: _Model) -> None:
        own = np.sum(list(model.work.values()), axis=0)
        typical = np.median(own, axis=0) if len(own) > 2 else own.min(axis=0)  # noqa: PLR2004  of two the faster one
        scale = np.minimum(1.0, typical / np.maximum(own, 1.0))
        for part in model.work:
            model.work[part] = model.work[part] * scale

    return apply


def _bandwidth(text: str, value: str, _: int | None) -> Change:
    factor = _factor(text, value)
    if factor <= 0:
        raise UsageError(f"--what-if {text}: the bandwidth has to be more than 0")

    def apply(model: _Model) -> None:
        model.transfer = model.transfer / factor

    return apply


def _latency(text: str, value: str, _: int | None) -> Change:
    factor = _factor(text, value)

    def apply(model: _Model) -> None:
        model.latency = model.latency * factor

    return apply


def _negotiation(text: str, value: str, _: int | None) -> Change:
    factor = _factor(text, value)

    def apply(model: _Model) -> None:
        model.negotiation = model.negotiation * factor

    return apply


def _fusion(text: str, value: str, _: int | None) -> Change:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?b?)", value)
    unit = None if match is None else _UNITS.get(match[2] if match[2].endswith("b") or not match[2] else match[2] + "b")
    if match is None or unit is None or not float(match[1]):
        raise UsageError(f"--what-if {text}: a size is needed, as 16MB")
    nbytes = float(match[1]) * unit

    def apply(model: _Model) -> None:
        # As few collectives as carry the bytes of a step; never more than there are.
        needed = max(1.0, np.ceil(model.bytes_per_step / nbytes))
        if model.collectives_per_step > needed:
            model.latency = model.latency * (needed / model.collectives_per_step)

    return apply


def _overlap(text: str, value: str, _: int | None) -> Change:
    if value != "perfect":
        raise UsageError(f"--what-if {text}: write overlap=perfect")

    def apply(model: _Model) -> None:
        # Gradients are there from the middle of backward on, on average: what is exposed may hide behind what is left of it.
        backward = model.work.get(str(Category.BACKWARD))
        if backward is None:
            return
        hidden_already = model.facts.breakdown.hidden_ns.mean(axis=0)
        room = np.maximum(backward.max(axis=0) - hidden_already, 0.0)
        exposed = model.latency + model.transfer
        left = np.maximum(exposed - room, 0.0)
        scale = np.divide(left, exposed, out=np.zeros_like(exposed), where=exposed > 0)
        model.latency, model.transfer = model.latency * scale, model.transfer * scale

    return apply


def describe(prediction: Prediction) -> dict[str, Any]:
    """For the machine-readable report."""
    return {
        "change": prediction.change,
        "step_ns": round(prediction.step_ns),
        "predicted_ns": round(prediction.predicted_ns),
        "predicted_gain": round(prediction.gain, 4),
        "gain_interval": [round(bound, 4) for bound in prediction.gain_interval],
    }
