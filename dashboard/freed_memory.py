"""What a large analysis has freed goes back to the system, rather than staying with the process for good."""

import ctypes
import sys
from typing import Final

import pyarrow as pa

#: glibc's name for the size from which on memory is the system's own, and what it is set to.
_MMAP_THRESHOLD: Final = -3
_LARGE_NBYTES: Final = 1 << 20


def give_back() -> None:
    """Give it back where the C library can (glibc); elsewhere nothing happens.

    An analysis makes and drops many columns of some megabytes.  glibc keeps them for the next ones, which of a server that has
    nothing more to analyse do not come: of ten million spans that is as much again as the columns.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        trim, option = getattr(library, "malloc_trim", None), getattr(library, "mallopt", None)
        if option is not None:
            # What questions need for a moment goes back by itself from now on; glibc has learned of larger sizes by now.
            option(_MMAP_THRESHOLD, _LARGE_NBYTES)
        if trim is not None:
            trim(0)
