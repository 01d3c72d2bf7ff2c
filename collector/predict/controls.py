"""The controls of what-if: what the sliders and switches of the dashboard and of a notebook change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...timeline.errors import TlkitError
from ..model.words import milliseconds

if TYPE_CHECKING:
    from ..facts import Facts

#: A slider goes from 0 to this, percent of the time as it is; here it changes nothing.
AS_IT_IS: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Slider:
    """An amount that can be changed."""

    name: str
    label: str
    change_to: Callable[[int], str]
    """The change, as `predict` takes it, for a percentage below AS_IT_IS."""


def _percent(name: str) -> Callable[[int], str]:
    return lambda percent: f"{name}={percent}%"


SLIDERS: Final = (
    Slider(name="data", label="waiting for data", change_to=_percent("data")),
    Slider(name="compute", label="computation", change_to=_percent("compute")),
    Slider(
        name="bandwidth",
        label="time of moving bytes",
        change_to=lambda percent: f"bandwidth={AS_IT_IS / max(percent, 1):.3f}x",
    ),
    Slider(name="latency", label="cost of each collective", change_to=_percent("latency")),
)

#: Label and change of each switch.
SWITCHES: Final = (
    ("no stragglers", "straggler=none"),
    ("perfect overlap", "overlap=perfect"),
    ("no negotiation", "negotiation=0"),
)


def changes_of(percent_by_name: Mapping[str, float], switches: Sequence[str]) -> list[str]:
    """What the controls ask for, as `predict` takes it.

    Args:
        percent_by_name: where each slider stands, by its name.
        switches: the changes of the switches that are on.
    """
    moved = [
        slider.change_to(int(percent_by_name[slider.name]))
        for slider in SLIDERS
        if percent_by_name.get(slider.name, AS_IT_IS) < AS_IT_IS
    ]
    return [*moved, *switches]


#: Of a percentage in an address; more would be no number that Python reads.
_DIGITS: Final = 4


def from_address(words: str) -> tuple[dict[str, int], list[str]]:
    """Where the sliders stand that an address moves, and the switches that it turns on; what makes no sense is left out.

    >>> from_address("data:50,overlap=perfect,x:1,data:" + 5000 * "9")
    ({'data': 50}, ['overlap=perfect'])
    """
    percents, switches = {}, []
    known = {slider.name for slider in SLIDERS}
    for part in words.split(","):
        name, _, percent = part.partition(":")
        if (
            name in known
            and percent.isascii()
            and percent.isdigit()
            and len(percent) <= _DIGITS
            and int(percent) < AS_IT_IS
        ):
            percents[name] = int(percent)
        elif part in {change for _, change in SWITCHES} and part not in switches:
            switches.append(part)
    return percents, switches


def predict_in_words(facts: "Facts | None", changes: Sequence[str]) -> str:
    """A sentence with the step time after all `changes`, or with the reason why it cannot be predicted; None for no run yet."""
    if facts is None or not changes:
        return "Move a slider to see what a step would take."
    from .what_if import predict  # noqa: PLC0415  the controls are on the screen before it is loaded

    try:
        found = predict(facts, changes)
    except TlkitError as error:
        return str(error)
    now, then = milliseconds(found.step_ns), milliseconds(found.predicted_ns)
    return f"A step would take {then} instead of {now}: {found.gain:.0%} less."
