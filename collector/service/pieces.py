"""Many small pieces in one request: where a thousand shards grow by a line each, a request costs more than what it carries.

The body is piece after piece: a line of JSON that says what follows (`shard`, `offset`, `before`, `nbytes`), and so many bytes.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

#: Pieces of one request.
MAX_PIECES: Final = 1024
#: Of a line that says what follows.
_MAX_LINE: Final = 1000


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a shard, as `ShardStore.append` takes it."""

    shard: str
    offset: int
    before: str
    content: bytes


def pack(pieces: Iterable[Piece]) -> bytes:
    """The body of a request."""
    parts = []
    for piece in pieces:
        described = {
            "shard": piece.shard, "offset": piece.offset, "before": piece.before, "nbytes": len(piece.content),
        }  # fmt: skip
        parts += [json.dumps(described).encode(), b"\n", piece.content]
    return b"".join(parts)


def unpack(body: bytes) -> Iterator[Piece]:
    """The pieces of a body.

    Raises:
        ValueError: it is none.
    """
    at = 0
    for _ in range(MAX_PIECES):
        if at == len(body):
            return
        end = body.find(b"\n", at, at + _MAX_LINE)
        if end < 0:
            raise ValueError("a line of JSON is missing")
        described = _described(body[at:end])
        at = end + 1 + described["nbytes"]
        if at > len(body):
            raise ValueError("the last piece is cut")
        yield Piece(described["shard"], described["offset"], described["before"], body[end + 1 : at])
    if at < len(body):
        raise ValueError(f"a request has at most {MAX_PIECES} pieces")


def _described(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("a line of JSON is damaged") from error
    numbers, texts = ("offset", "nbytes"), ("shard", "before")
    if (
        not isinstance(found, dict)
        or not all(type(found.get(key)) is int and 0 <= found[key] < 10**18 for key in numbers)
        or not all(isinstance(found.get(key), str) for key in texts)
    ):
        raise ValueError("a line of JSON has to have shard, offset, before and nbytes")
    return found
