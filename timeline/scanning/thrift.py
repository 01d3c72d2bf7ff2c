"""When reading is given up: what a file makes of memory and time has to be in proportion to its bytes.

A packed file of 100 kB may unpack to 100 MB of `{},`, each of which would be a row of every column.  No program writes events so
short, or so many names, or so much that is no JSON: such a file is refused while it is read.
"""

from typing import Final

from ..errors import TraceError
from ..read.source import Source

#: An event takes some 130 bytes of tables, a name of its own some 300: three times what these take in the file.
MIN_EVENT_NBYTES: Final = 40
MIN_TEXT_NBYTES: Final = 100
#: So many are read whatever their size is; together some 250 MB.
FREE_EVENTS: Final = 1_000_000
FREE_TEXTS: Final = 300_000
#: An event that is no JSON takes ten microseconds and more.  So many may be, and beyond as many as are well.
FREE_BROKEN: Final = 100_000


def check_proportion(source: Source, *, nbytes: int, events: int, texts: int = 0, broken: int = 0) -> None:
    """Refuse a file that is nothing but very short events, names, or damage.

    Args:
        source: the file.
        nbytes: bytes that were read of it, unpacked.
        events: what these have become.
        texts: different names and numbers in them.
        broken: events that were no JSON.

    Raises:
        TraceError: it is.
    """
    if (events - FREE_EVENTS) * MIN_EVENT_NBYTES > nbytes:
        raise TraceError(
            f"{source.path}: {events:,} events in {nbytes:,} bytes: no program writes such short ones, and the file is refused"
        )
    if (texts - FREE_TEXTS) * MIN_TEXT_NBYTES > nbytes:
        raise TraceError(
            f"{source.path}: {texts:,} different names in {nbytes:,} bytes: no program writes so many, and the file is refused"
        )
    if broken > max(FREE_BROKEN, events):
        raise TraceError(
            f"{source.path}: {broken:,} of its events are damaged, and only {events:,} are not: it is refused"
        )
