"""How the recording of a rank ends: whether it was closed, and what was under way when it stopped.

Readers fill these records; what follows from them for the run is the collector's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Tensors under way that are kept by name; the rest are counted.
MAX_OPEN_TENSORS: Final = 16
#: Spans under way that are kept.
MAX_OPEN_SPANS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenSpan:
    """A span that was begun and never ended."""

    lane: str
    category: str
    name: str
    start_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenTensor:
    """A tensor that was asked for and has no result."""

    name: str
    kind: str
    submitted_ns: int
    is_negotiated: bool
    """Whether all ranks had asked for it."""
    asked_by: tuple[int, ...] = ()
    """Ranks that are known to have asked for it, beside the recording one; () where the file does not tell."""
    awaited: tuple[int, ...] = ()
    """Ranks that are known not to have, where the files tell which have to; () otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """The end of one rank's recording; times in ns of the run clock."""

    is_closed: bool | None
    """Whether the recording was closed by the program; None where the format has no mark for it."""
    error: str = ""
    """What ended the program, or "" if nothing is known to have failed."""
    open_spans: tuple[OpenSpan, ...] = ()
    """Outer before inner."""
    open_tensors: tuple[OpenTensor, ...] = ()
    """In the order of submission, MAX_OPEN_TENSORS at most."""
    open_tensor_count: int = 0
    is_snapshot: bool = False
    """Written while the program was there, because it did not go on: what is under way hangs."""


def make_end(
    *,
    is_closed: bool | None,
    error: str = "",
    open_spans: Sequence[OpenSpan] = (),
    open_tensors: Sequence[OpenTensor] = (),
    is_snapshot: bool = False,
) -> RankEnd:
    """The record of an end, in order and of bounded size."""
    return RankEnd(
        is_closed=is_closed,
        error=error,
        open_spans=tuple(sorted(open_spans, key=lambda span: span.start_ns)[-MAX_OPEN_SPANS:]),
        open_tensors=tuple(sorted(open_tensors, key=lambda tensor: tensor.submitted_ns)[:MAX_OPEN_TENSORS]),
        open_tensor_count=len(open_tensors),
        is_snapshot=is_snapshot,
    )


def ends_from(described: Mapping[str, Mapping[str, Any]]) -> dict[int, RankEnd]:
    """The ends by rank, out of what `dataclasses.asdict` and JSON make of them."""
    return {
        int(rank): RankEnd(
            is_closed=end["is_closed"],
            error=end["error"],
            open_spans=tuple(OpenSpan(**span) for span in end["open_spans"]),
            open_tensors=tuple(
                OpenTensor(**{**tensor, **{name: tuple(tensor.get(name, ())) for name in ("asked_by", "awaited")}})
                for tensor in end["open_tensors"]
            ),
            open_tensor_count=end["open_tensor_count"],
            is_snapshot=end.get("is_snapshot", False),
        )
        for rank, end in described.items()
    }
