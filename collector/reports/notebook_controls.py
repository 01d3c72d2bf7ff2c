"""Sliders and switches for what-if in a notebook, drawn by ipywidgets, which the extra `notebook` installs."""

import html
from importlib.util import find_spec
from typing import Any

from ...timeline.commands.arguments import clean
from ...timeline.errors import UsageError
from ..facts import Facts
from ..predict.controls import AS_IT_IS, SLIDERS, SWITCHES, changes_of, predict_in_words


def what_if_controls(facts: Facts) -> Any:
    """A box of controls; below them the step time that the changed run would have.

    Returns:
        An `ipywidgets.VBox`: a slider for each of SLIDERS, a checkbox for each of SWITCHES, and the answer.

    Raises:
        UsageError: ipywidgets is not installed.
    """
    if find_spec("ipywidgets") is None:
        raise UsageError("the controls need ipywidgets: pip install 'tlkit[notebook]'; predict() needs nothing more")
    import ipywidgets  # noqa: PLC0415  optional

    wide = {"description_width": "15em"}
    sliders = [
        ipywidgets.IntSlider(
            AS_IT_IS,
            0,
            AS_IT_IS,
            5,
            description=f"{slider.label}, %",
            continuous_update=False,
            style=wide,
            layout={"width": "36em"},
        )
        for slider in SLIDERS
    ]
    switches = [ipywidgets.Checkbox(description=label, indent=False) for label, _ in SWITCHES]
    answer = ipywidgets.HTML()

    def update(_: object = None) -> None:
        percents = {slider.name: control.value for slider, control in zip(SLIDERS, sliders, strict=True)}
        on = [change for (_, change), control in zip(SWITCHES, switches, strict=True) if control.value]
        answer.value = html.escape(clean(predict_in_words(facts, changes_of(percents, on))))

    for control in (*sliders, *switches):
        control.observe(update, names="value")
    update()
    return ipywidgets.VBox([*sliders, ipywidgets.HBox(switches), answer])
