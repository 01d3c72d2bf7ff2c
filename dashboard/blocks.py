"""What of a page the browser has, so that a live page is sent no more than the blocks that changed.

A block that is replaced is mounted anew: it loses the focus, and what a hand is on.  Dash mounts everything anew below whatever a
callback returns, so that the blocks have containers of their own, and only the containers of changed blocks are written to.
"""

import json
import zlib
from collections.abc import Sequence
from typing import Any

from dash import html
from plotly.io.json import to_json_plotly


def describe(key: str, blocks: Sequence[Any]) -> dict[str, Any]:
    """What the browser keeps of a page that it is sent.

    Args:
        key: which page in which state, theme included.
    """
    return {"key": key, "blocks": [_mark(block) for block in blocks]}


def contain(key: str, blocks: Sequence[Any]) -> list[Any]:
    """The blocks, each in a container that `changed` can name."""
    return [html.Div(block, id=_container(key, place)) for place, block in enumerate(blocks)]


def changed(known: object, key: str, blocks: Sequence[Any]) -> dict[str, Any] | None:
    """By container the blocks that are not as the browser has them.

    Args:
        known: what `describe` said of what the browser has.

    Returns:
        None if it has another page, or as many blocks as no version of this one: nothing of it can stay.
    """
    marks = known.get("blocks") if isinstance(known, dict) and known.get("key") == key else None
    if not isinstance(marks, list) or len(marks) != len(blocks):
        return None
    return {
        _container(key, place): block
        for place, (block, mark) in enumerate(zip(blocks, marks, strict=True))
        if _mark(block) != mark
    }


def _container(key: str, place: int) -> str:
    # With the page in its name: an answer that comes late finds no container of the page that somebody went to meanwhile.
    return f"block-{zlib.crc32(key.encode()):08x}-{place}"


def as_sent(blocks: Sequence[Any]) -> list[Any]:
    """The blocks as the browser gets them, in plain lists and objects, which can be sent again as they are."""
    sent: list[Any] = json.loads(to_json_plotly(list(blocks)))
    return sent


def _mark(block: Any) -> int:
    # What is sent holds all of it; whoever finds two blocks of one mark does not see an update, and the next one.
    return zlib.crc32(to_json_plotly(block).encode())
