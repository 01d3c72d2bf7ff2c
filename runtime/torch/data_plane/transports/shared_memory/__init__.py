"""Collectives of ranks on one host through memory that they share, instead of a network that they do not need.

`native.c` says how ranks meet there, `memory.py` how they come to the same memory, `transport.py` what the runtime sees.
"""

from .memory import is_built
from .transport import SharedMemoryTransport, open_shared_memory

__all__ = ["SharedMemoryTransport", "is_built", "open_shared_memory"]
