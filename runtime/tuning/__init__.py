"""Settings that reach a script which knows nothing of them, and the ranks' part in the trials of `tl-tune`.

TLKIT_SETTINGS changes what the script hands to DataLoader, DistributedDataParallel and its optimizer; TLKIT_TRIAL makes the job a
trial (see timeline/trials.py for both).  Without them nothing here is loaded.
"""

import os
from typing import Any, Final

from ...timeline.trials import COMPRESSION, SETTINGS_VARIABLE, TRIAL_VARIABLE, parse_settings

_applied: Final[dict[str, str]] = {}
_begun: Final[list[Any]] = []


def begin() -> None:
    """Do what the environment asks for, before the ranks meet.  The second call does nothing.

    Raises:
        UsageError: it asks for something that makes no sense.
    """
    if _begun or not (os.environ.get(SETTINGS_VARIABLE) or os.environ.get(TRIAL_VARIABLE)):
        return
    from . import overrides  # noqa: PLC0415  a run without settings does without

    settings = parse_settings(os.environ.get(SETTINGS_VARIABLE, ""))
    _applied.update(settings)
    _begun.append(settings)
    overrides.install(settings)
    if os.environ.get(TRIAL_VARIABLE):
        from .trial import start  # noqa: PLC0415  as above

        start(os.environ[TRIAL_VARIABLE])


def compression_name() -> str | None:
    """The compression of gradients that the environment asks for; None for the script's own."""
    return _applied.get(COMPRESSION)


__all__ = ["begin", "compression_name"]
