"""How durations, names and ranks are written in sentences: the same on a terminal, a page and in a report."""

from collections.abc import Sequence
from typing import Final

#: Units of bytes, largest first.
NBYTES_SIZES: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


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


def nbytes_words(value: float) -> str:
    """Bytes for people, of a thousand each.

    >>> nbytes_words(23_068_672), nbytes_words(-1500), nbytes_words(12), nbytes_words(999_700_000)
    ('23.1 MB', '-1.5 kB', '12 bytes', '1 GB')
    """
    # What would be rounded to a thousand is one of the next size.
    size, unit = next(((size, unit) for size, unit in NBYTES_SIZES if abs(value) >= 0.9995 * size), (1, "bytes"))
    return f"{value / size:.3g} {unit}" if size > 1 else f"{value:.0f} bytes"
