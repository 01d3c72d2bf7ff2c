"""The colour of each category: in reports, plots, pages, NVTX ranges and nvtxt files alike.

Okabe and Ito's colours, which stay apart for colour-blind eyes.  Knows nothing of the tools that draw them.
"""

from typing import Final

from .vocabulary import Category

#: As HTML writes them: `#RRGGBB`.
CATEGORY_COLOURS: Final = {
    Category.DATA: "#E69F00",
    Category.H2D: "#F0E442",
    Category.FORWARD: "#56B4E9",
    Category.BACKWARD: "#0072B2",
    Category.NEGOTIATE: "#CC79A7",
    Category.QUEUE: "#B08BB0",
    Category.FUSION: "#FFB37A",
    Category.COLLECTIVE: "#D55E00",
    Category.OPTIMIZER: "#009E73",
    Category.CHECKPOINT: "#7F7F7F",
    Category.OTHER: "#BBBBBB",
}


def argb(category: Category) -> int:
    """An opaque colour as NVTX takes it.

    >>> hex(argb(Category.DATA))
    '0xffe69f00'
    """
    return 0xFF000000 | int(CATEGORY_COLOURS[category][1:], 16)
