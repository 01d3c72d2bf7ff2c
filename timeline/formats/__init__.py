"""Readers, one module a format.  A new format is one module and one line here, or an entry point of the group `tlkit.formats`."""

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, cast

from . import chrome, horovod, kineto, nsys, tlkit, written
from .base import Format, Progress

#: The special before the general: the first that knows a file reads it.
_OWN: Final[tuple[Any, ...]] = (written, tlkit, horovod, kineto, nsys, chrome)


@cache
def known_formats() -> tuple[Format, ...]:
    """All readers, those that other packages bring first."""
    brought = tuple(point.load() for point in entry_points(group="tlkit.formats"))
    return cast("tuple[Format, ...]", brought + _OWN)


__all__ = ["Format", "Progress", "known_formats"]
