"""Trace events as columns: the fast way from JSON to numbers.

A scanner (`native.c` where it could be compiled, else `portable.py`) takes what is as the format has it; `odd.py` takes the rest;
`reading.py` leads the bytes of a file past them.
"""

from .events import Events
from .lookup import first_rows, gather, select
from .odd import MAX_US, Event, OddEvents, args_of, decode_args, plain
from .parts import narrow
from .reading import has_compiled_scanner, scan, scan_all
from .thrift import check_proportion
from .together import halves, together

__all__ = [
    "MAX_US",
    "Event",
    "Events",
    "OddEvents",
    "args_of",
    "check_proportion",
    "decode_args",
    "first_rows",
    "gather",
    "halves",
    "has_compiled_scanner",
    "narrow",
    "plain",
    "scan",
    "scan_all",
    "select",
    "together",
]
