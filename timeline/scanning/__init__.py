"""Trace events as columns: the fast way from JSON to numbers.

A scanner (`native.c` where it could be compiled, else `portable.py`) takes what is as the format has it; `odd.py` takes the rest;
`events.py` leads the bytes of a file past them.
"""

from .events import Events, has_compiled_scanner, scan
from .odd import Event, OddEvents, args_of, decode_args

__all__ = ["Event", "Events", "OddEvents", "args_of", "decode_args", "has_compiled_scanner", "scan"]
