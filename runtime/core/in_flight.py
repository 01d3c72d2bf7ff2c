"""Batches that a device has been handed and has not done: they are waited for one by one, while the next are handed out.

The thread that waits is started by the first of them, so that a job on the CPU has none.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from .binding import Pending
from .work import Batch


class InFlight:
    """What a device works through, in the order in which it was handed out."""

    def __init__(self, conclude: Callable[[Batch, Pending], None], on_progress: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            conclude: called on the thread of this class for the oldest batch; waits for it, and finishes it.
            on_progress: called when one is over.
        """
        self._conclude = conclude
        self._on_progress = on_progress
        self._batches: deque[tuple[Batch, Pending]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch, pending: Pending) -> None:
        """A batch that was handed out."""
        with self._changed:
            self._batches.append((batch, pending))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tlkit-device", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until none is left, or for `timeout_s`; whether none is."""
        if not self._batches:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._batches, timeout_s)

    def stop(self) -> None:
        """End the thread after what was handed out.  Nothing may be added afterwards."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; whether it has."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(max(timeout_s, 0.0))
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._stopping)
                if not self._batches:
                    return
                # It stays in the queue until it is over, so that `len` never reads 0 while there is work.
                batch, pending = self._batches[0]
            self._conclude(batch, pending)
            # A thread that waits for work must not keep the tensors of the last one.
            del batch, pending
            with self._changed:
                self._batches.popleft()
                self._changed.notify_all()
            self._on_progress()


def left_of(timeout_s: float, since_s: float) -> float:
    """What is left of a time that began to pass at `since_s` (time.monotonic)."""
    return max(timeout_s - (time.monotonic() - since_s), 0.0)
