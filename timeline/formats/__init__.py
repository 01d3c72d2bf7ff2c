"""Readers, one module a format.  A new format is one module and one line here."""

from typing import cast

from . import horovod, tlkit
from .base import Format, Progress

FORMATS = cast("tuple[Format, ...]", (tlkit, horovod))

__all__ = ["FORMATS", "Format", "Progress"]
