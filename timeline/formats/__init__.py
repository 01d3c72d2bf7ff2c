"""Readers, one module a format.  A new format is one module and one line here, or an entry point of the group `tlkit.formats`."""

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, cast

from ..errors import UsageError, first_line
from . import (
    chrome,
    flight_recorder,
    horovod,
    kineto,
    nccl_inspector,
    nsys,
    nsys_folder,
    perfetto,
    rocpd,
    tlkit,
    written,
    xplane,
)
from .base import Format, Progress
from .plug_ins import may_have_plug_ins

#: Entry points of this group name readers: modules, or classes that are made without arguments.
GROUP: Final = "tlkit.formats"

#: The special before the general: the first that knows a file reads it.
_OWN: Final[tuple[Any, ...]] = (
    written,
    tlkit,
    horovod,
    kineto,
    rocpd,
    nsys,
    nsys_folder,
    flight_recorder,
    nccl_inspector,
    xplane,
    perfetto,
    chrome,
)


@cache
def known_formats() -> tuple[Format, ...]:
    """All readers, those that other packages bring first.

    Raises:
        UsageError: another package's reader cannot be loaded, or is none.
    """
    brought: list[Any] = []
    for point in entry_points(group=GROUP) if may_have_plug_ins(GROUP) else ():
        try:
            reader = point.load()
            brought.append(reader() if isinstance(reader, type) else reader)
        except Exception as error:  # somebody else's code
            raise UsageError(
                f"the reader {point.name} ({point.value}) cannot be loaded: {first_line(error)}"
            ) from error
        missing = [name for name in ("NAME", "sniff", "read") if not hasattr(brought[-1], name)]
        if missing:
            raise UsageError(f"the reader {point.name} ({point.value}) is none: it has no {missing[0]}")
    return cast("tuple[Format, ...]", (*brought, *_OWN))


__all__ = ["GROUP", "Format", "Progress", "known_formats"]
