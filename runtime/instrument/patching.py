"""Replacing attributes of other modules, and putting them back as they were."""

import logging
from typing import Any

_log = logging.getLogger("tlkit.instrument")


class Patches:
    """Attributes that were replaced, with what was there before."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set `owner.name`."""
        self._replaced.append((owner, name, getattr(owner, name), replacement))
        setattr(owner, name, replacement)

    def restore(self) -> None:
        """Restore all originals, except where other code has replaced our wrapper."""
        while self._replaced:
            owner, name, original, replacement = self._replaced.pop()
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)
            else:
                _log.debug("%s.%s was replaced by other code and is left in place", owner, name)
