"""How a job ends that does not end well: what has failed here, and what the others are told."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from ..work import Completions, Entry

#: How long a failed operation waits for the news that a rank has died.
GRACE_S: Final = 0.5

#: How much longer rank 0 waits for ranks that do not answer, before it says that they are at fault.
SILENCE_S: Final = 1.5

#: How long the others wait for what rank 0 says.
HEARSAY_S: Final = 4.0


class Failures:
    """What has failed in this process, until it is known why.

    A transport says that a connection is closed, and not that a rank was killed; of that the control plane hears a moment later.
    The operations that failed wait for it.
    """

    def __init__(
        self, completions: Completions, grace_s: float, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Begin with none.

        Args:
            grace_s: how long to wait for something that says more.
        """
        self._clock_ns = clock_ns
        self._completions = completions
        self._grace_s = grace_s
        self._lock = threading.RLock()
        self._new: str | None = None
        self._entries: list[Entry] = []
        self._ended_with: str | None = None
        self._give_up_ns = 0
        self.suspicion: str | None = None
        """What is taken for the cause if nothing better is heard."""

    @property
    def are_open(self) -> bool:
        """Whether something has failed of which the others do not know why."""
        return self._new is not None or self.suspicion is not None

    def note(self, reason: str, entries: Sequence[Entry] = ()) -> None:
        """An operation has failed (called by any thread); takes over its entries."""
        with self._lock:
            self._new = reason
            error = self._ended_with
            if error is None:
                self._entries += entries
                return
        # It outlasted the control plane: the cause has been known for a while.
        self._completions.finish(entries, error)

    def take_new(self) -> str | None:
        """What has failed since the last call."""
        with self._lock:
            reason, self._new = self._new, None
        return reason

    def suspect(self, reason: str) -> None:
        """Wait for something that says more than `reason`."""
        if self.suspicion is None:
            self.suspicion = reason
            self._give_up_ns = self._clock_ns() + round(self._grace_s * 1e9)

    def wait_longer(self, extra_s: float) -> None:
        """Somebody may still say more."""
        self._give_up_ns = self._clock_ns() + round(extra_s * 1e9)

    @property
    def remaining_s(self) -> float | None:
        """How long it is still waited; None if nothing is suspected."""
        return None if self.suspicion is None else (self._give_up_ns - self._clock_ns()) / 1e9

    def end(self, error: str) -> None:
        """Finish the operations that have failed, and those that fail from now on."""
        with self._lock:
            self._ended_with = self._ended_with or error
            entries, self._entries = self._entries, []
        self._completions.finish(entries, error)


def farewell(rank: int, host: str) -> str:
    """The message to the other ranks that this one ends, with the reason if it is an uncaught exception."""
    died_of: BaseException | None = getattr(sys, "last_value", None)
    if died_of is None:
        return f"rank {rank} has shut down"
    said = f"{type(died_of).__name__}: {died_of}".splitlines()[0][:500]
    return f"rank {rank} on {host} died of {said}"
