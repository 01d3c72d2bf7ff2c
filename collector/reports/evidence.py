"""The evidence of a finding for people: its names as words, its numbers with their units.

In the machine-readable report a name ends in the unit of its value (`mean_wait_ns`); here the value carries it.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from ..model.words import duration, nbytes_words
from .rows import bandwidth_words

#: Of a list so many are named.
MAX_LISTED: Final = 24
#: More ranks than these are not listed one by one.
MAX_RANKS: Final = 8
#: The key of what a mapping is in a word.
_ITSELF: Final = "is"
#: Numbers in a row from which on only the first and the last are named.
_MIN_RUN: Final = 3


def evidence_rows(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known, and its value.

    >>> evidence_rows({"mean_wait_ns": 4_200_000, "late_steps": [3, 4, 5, 9], "busy_ratio": 0.25})
    [('mean wait', '4.2 ms'), ('late steps', '3 to 5, 9'), ('busy', '25%')]
    >>> evidence_rows({"own_work_by_rank_ns": {"0": 1_500_000, "1": 2_000_000}})
    [('own work by rank', 'rank 0: 1.5 ms, rank 1: 2.0 ms')]
    """
    rows = [row for name, value in evidence.items() for row in _rows(name, value, evidence)]
    return [(name, value) for name, value in rows if value]


def _rows(name: str, value: object, beside: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of a mapping of several things a row for each."""
    words, write = _unit(name)
    if name.endswith("_ratio") and name.removesuffix("_ratio") in beside:
        words = f"share of {words}"
    if write is _time and not value:
        return []
    if write is not None or "by_rank" in name or not isinstance(value, Mapping):
        return [(words, _say(value, write, is_by_rank="by_rank" in name))]
    # Of what is not a time each key is a thing of its own.
    inner = [row for key, found in value.items() for row in _rows(str(key), found, value)]
    return [(words if key == _ITSELF else f"{words}, {key}", said) for key, said in inner]


def _time(value_ns: float) -> str:
    return ("-" if value_ns < 0 else "") + duration(abs(value_ns))


#: Endings of names, and how the value is written; what stays of the name is what it is called.
_UNITS: Final[tuple[tuple[str, Callable[[float], str]], ...]] = (
    ("_ns", _time),
    ("_gbps", lambda value: f"{bandwidth_words(value)} GB/s"),
    ("_mhz", lambda value: f"{value:,.0f} MHz"),
    ("_ratio", lambda value: f"{value:.3g}" if abs(value) > 1 else _percent(value)),
)


def _unit(name: str) -> tuple[str, Callable[[float], str] | None]:
    """What a value is called, and how it is written; None as a plain number."""
    for ending, write in _UNITS:
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " "), write
    words = name.replace("_", " ")
    parts = words.split()
    if "share" in parts or parts[0] == "gain":
        return words, _percent
    if {"bytes", "nbytes"} & set(parts):
        return words.replace("nbytes", "bytes"), nbytes_words
    return words, None


def _percent(value: float) -> str:
    return f"{value:.0%}" if abs(value) >= 0.1 or not value else f"{value:.1%}"  # noqa: PLR2004  two digits


def _say(value: object, write: Callable[[float], str] | None, *, is_by_rank: bool = False) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return write(value) if write is not None else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    if isinstance(value, Mapping):
        if is_by_rank and len(value) > MAX_RANKS and all(isinstance(inner, (int, float)) for inner in value.values()):
            return _of_many_ranks(value, write)
        # Of times and sizes, zeros tell nothing.
        told = {name: inner for name, inner in value.items() if write is None or is_by_rank or inner}
        return ", ".join(_pair(str(name), inner, write, is_by_rank=is_by_rank) for name, inner in told.items())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return _listed(value, write)
    return "" if value is None else str(value)


def _of_many_ranks(values: Mapping[str, float], write: Callable[[float], str] | None) -> str:
    """The highest values and the lowest one.

    >>> _of_many_ranks({str(rank): rank / 4 for rank in range(12)}, None)
    'rank 11: 2.75, rank 10: 2.5, rank 9: 2.25, rank 8: 2, …, lowest: rank 0: 0'
    """
    order = sorted(values, key=lambda rank: -values[rank])
    said = [_pair(rank, values[rank], write, is_by_rank=True) for rank in (*order[: MAX_RANKS // 2], order[-1])]
    return f"{', '.join(said[:-1])}, …, lowest: {said[-1]}"


def _pair(name: str, value: object, write: Callable[[float], str] | None, *, is_by_rank: bool) -> str:
    if write is not None or is_by_rank:
        return f"{f'rank {name}' if is_by_rank else name.replace('_', ' ')}: {_say(value, write)}"
    return ", ".join(f"{words}: {said}" for words, said in _rows(name, value, {}))


def _listed(values: Sequence[object], write: Callable[[float], str] | None) -> str:
    if write is None and values and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        said = _runs([int(str(value)) for value in values])
    else:
        said = [f"({_say(value, write)})" if isinstance(value, Mapping) else _say(value, write) for value in values]
    more = len(said) - MAX_LISTED
    return ", ".join(said[:MAX_LISTED]) + (f", and {more} more" if more > 0 else "")


def _runs(numbers: Sequence[int]) -> list[str]:
    """Whole numbers in words; of several in a row the first and the last.

    >>> _runs([1, 2, 4, 5, 6, 7])
    ['1', '2', '4 to 7']
    """
    ends = [0, *(at + 1 for at, (one, other) in enumerate(pairwise(numbers)) if other != one + 1), len(numbers)]
    found: list[str] = []
    for begin, end in pairwise(ends):
        run = numbers[begin:end]
        found += [f"{run[0]} to {run[-1]}"] if len(run) >= _MIN_RUN else map(str, run)
    return found
