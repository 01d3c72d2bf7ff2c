"""One colour and one label for each part of a step, in reports, plots and pages alike."""

from typing import Final

from ...timeline.vocabulary import Category
from ..model.breakdown import IDLE, Breakdown

#: The palette of categories, which stays apart for colour-blind eyes (Okabe and Ito), for 256-colour terminals.
COLOURS: Final = {
    str(Category.DATA): "#E69F00",
    str(Category.H2D): "#F0E442",
    str(Category.FORWARD): "#56B4E9",
    str(Category.BACKWARD): "#0072B2",
    str(Category.NEGOTIATE): "#CC79A7",
    str(Category.QUEUE): "#B08BB0",
    str(Category.FUSION): "#FFB37A",
    str(Category.COLLECTIVE): "#D55E00",
    str(Category.OPTIMIZER): "#009E73",
    str(Category.CHECKPOINT): "#7F7F7F",
    str(Category.OTHER): "#BBBBBB",
    IDLE: "#888888",
}
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
    label = LABELS.get(part, part)
    if breakdown.knows_compute:
        return label
    return "outside communication" if part == Category.OTHER else label.removesuffix(" (exposed)")
