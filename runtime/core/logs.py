"""The runtime's log, in the form and with the knobs that Horovod's has.

`[2026-11-20 21:26:33.  1234: W service.py:123] [0]: message`; HOROVOD_LOG_LEVEL chooses how much,
HOROVOD_LOG_HIDE_TIME leaves the time out.  An application that has set up logging for `tlkit` itself keeps its own set-up.
"""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Final

_LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


class _HorovodFormatter(logging.Formatter):
    """One line a record."""

    def __init__(self, rank: int, *, hide_time: bool) -> None:
        super().__init__()
        self._rank = rank
        self._hide_time = hide_time

    def format(self, record: logging.LogRecord) -> str:
        """See the module."""
        when = ""
        if not self._hide_time:
            seconds, fraction = divmod(record.created, 1)
            when = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{int(fraction * 1e6):6d}: "
        text = f"[{when}{record.levelname[0]} {record.filename}:{record.lineno}] [{self._rank}]: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def set_up(rank: int, environment: Mapping[str, str]) -> None:
    """Send the log of `tlkit` to stderr, as the environment wishes."""
    log = logging.getLogger("tlkit")
    wish = environment.get("HOROVOD_LOG_LEVEL", "warning").strip().lower()
    log.setLevel(_LEVELS.get(wish, logging.WARNING))
    if wish not in _LEVELS:
        log.warning("HOROVOD_LOG_LEVEL=%s is not one of %s: using warning", wish, ", ".join(_LEVELS))
    if log.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    hide_time = environment.get("HOROVOD_LOG_HIDE_TIME", "0").strip().lower() in {"1", "true", "yes", "on"}
    handler.setFormatter(_HorovodFormatter(rank, hide_time=hide_time))
    log.addHandler(handler)
    log.propagate = False
