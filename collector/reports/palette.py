"""One colour and one label for each part of a step, in reports, plots and pages alike."""

from typing import Final

from ...timeline.palette import CATEGORY_COLOURS, IDLE_COLOUR
from ...timeline.vocabulary import Category
from ..model.breakdown import IDLE, Breakdown

#: By part; `idle` is none of the categories.
COLOURS: Final = {**{str(category): colour for category, colour in CATEGORY_COLOURS.items()}, IDLE: IDLE_COLOUR}
LABELS: Final = {
    str(Category.DATA): "waiting for data",
    str(Category.H2D): "copy to device",
    str(Category.NEGOTIATE): "negotiate (exposed)",
    str(Category.QUEUE): "queue (exposed)",
    str(Category.FUSION): "fusion copies (exposed)",
    str(Category.COLLECTIVE): "collective (exposed)",
    str(Category.OTHER): "other (loop, loss, unrecorded)",
    IDLE: "idle",
}
#: Where the parts are times of a device.
DEVICE_LABELS: Final = {str(Category.OTHER): "other kernels", IDLE: "device idle"}


def label_of(part: str, breakdown: Breakdown) -> str:
    """What a part is called; communication is `exposed` where the trace shows that nothing else was done meanwhile."""
    if breakdown.on_device and part in DEVICE_LABELS:
        return DEVICE_LABELS[part]
    if part == IDLE and not breakdown.knows_communication:
        return "waiting for communication"
    label = LABELS.get(part, part)
    if breakdown.knows_compute:
        return label
    return "outside communication" if part == Category.OTHER else label.removesuffix(" (exposed)")
