"""What a large analysis has freed goes back to the system, rather than staying with the process for good."""

import ctypes
import sys

import pyarrow as pa


def give_back() -> None:
    """Give it back where the C library can (glibc); elsewhere nothing happens.

    An analysis makes and drops many columns of some megabytes.  glibc keeps them for the next ones, which of a server that has
    nothing more to analyse do not come: of ten million spans that is as much again as the columns.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
