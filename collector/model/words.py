"""How durations, names and ranks are written in sentences: the same on a terminal, a page and in a report."""

from collections.abc import Sequence


def shorten(name: str, most: int = 100) -> str:
    """A name for a sentence: the middle of a long one goes.

    >>> shorten("abcdefghij", 7)
    'abc…hij'
    """
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def milliseconds(value_ns: float) -> str:
    """A duration for a sentence.

    >>> milliseconds(51_234_567)
    '51.2 ms'
    """
    value = value_ns / 1e6
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"  # noqa: PLR2004


def signed(value_ns: float) -> str:
    """A difference of durations, in ms, or in µs where that would be a zero with a sign.

    >>> signed(33_000_000), signed(-150_000), signed(-12_300), signed(-40)
    ('+33.0 ms', '-0.15 ms', '-12 µs', '0 µs')
    """
    if abs(value_ns) >= 1e5:  # noqa: PLR2004  0.1 ms
        return ("+" if value_ns > 0 else "-") + milliseconds(abs(value_ns))
    whole = round(value_ns / 1e3)
    return f"{whole:+d} µs" if whole else "0 µs"


def name_ranks(ranks: Sequence[int], size: int) -> str:
    """Ranks as the subject of a sentence.

    >>> name_ranks([1], 4), name_ranks([0, 1], 2), name_ranks([0, 2], 4)
    ('Rank 1', 'Every rank', 'Ranks 0, 2')
    """
    if len(ranks) == size and size > 1:
        return "Every rank"
    if len(ranks) == 1:
        return f"Rank {ranks[0]}" if size > 1 else "The training loop"
    shown = ", ".join(map(str, ranks[:8]))
    return f"Ranks {shown}{', …' if len(ranks) > 8 else ''}"  # noqa: PLR2004


def duration(value_ns: float) -> str:
    """A duration for a sentence, in µs where milliseconds would be 0.00.

    >>> duration(5_600), duration(51_234_567)
    ('5.6 µs', '51.2 ms')
    """
    return f"{value_ns / 1e3:.1f} µs" if value_ns < 100_000 else milliseconds(value_ns)  # noqa: PLR2004  0.1 ms
