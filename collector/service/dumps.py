"""Requests to the flight recorders of jobs, on their way from whoever watches a run to the process that sends it.

A collector reaches no job: it answers.  So what is asked of a job waits until its sender is heard of, goes with the answer, and
is over when the sender says that it was passed on.  Nothing of it outlives the collector.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ...timeline.errors import TlkitError
from ...timeline.record.flight_requests import plain

#: A sender that has not been heard of for so long passes nothing on.
HEARD_S: Final = 15.0
#: Of what is said; the number of the request follows, and ranks take no more than twice as much.
MAX_WORDS: Final = 100


class NoRecorderError(TlkitError):
    """Nobody would hear a request."""


@dataclass(slots=True)
class _Sender:
    heard_s: float
    request: str = ""
    why: str = ""
    passed_on: str = ""


class Dumps:
    """What is asked of each run.  Safe to use from several threads."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._senders: dict[str, _Sender] = {}

    def hear(self, run: str) -> dict[str, str] | None:
        """The sender of a run with a flight recorder is there; what it is to pass on, if anything."""
        with self._lock:
            sender = self._senders.setdefault(run, _Sender(self._now_s()))
            sender.heard_s = self._now_s()
            return {"request": sender.request, "why": sender.why} if sender.request else None

    def ask(self, run: str, why: str) -> str:
        """Ask a run to set its recordings aside; returns the number of the request.  One at a time: two are the same.

        Raises:
            NoRecorderError: nobody would hear it.
        """
        with self._lock:
            self._forget_silent()
            sender = self._senders.get(run)
            if sender is None:
                raise NoRecorderError(
                    f"no flight recorder of {run[:121]} can be reached: HOROVOD_FLIGHT_RECORDER has to be set for the job, and "
                    "tl-collect push to send FOLDER/recording"
                )
            if not sender.request:
                sender.request = secrets.token_hex(4)
                sender.why = f"{plain(why)[:MAX_WORDS] or 'the collector asked'} (request {sender.request})"
            return sender.request

    def pass_on(self, run: str, request: str) -> None:
        """The sender has told the ranks."""
        with self._lock:
            sender = self._senders.get(run)
            if sender is not None and sender.request == request:
                sender.passed_on, sender.request, sender.why = request, "", ""

    def state(self, run: str) -> dict[str, Any]:
        """Whether a run can be asked, the request that waits, and the last one that was passed on."""
        with self._lock:
            self._forget_silent()
            sender = self._senders.get(run)
            if sender is None:
                return {"possible": False, "waiting": "", "passed_on": ""}
            return {"possible": True, "waiting": sender.request, "passed_on": sender.passed_on}

    def _forget_silent(self) -> None:
        oldest_s = self._now_s() - HEARD_S
        self._senders = {run: sender for run, sender in self._senders.items() if sender.heard_s >= oldest_s}
