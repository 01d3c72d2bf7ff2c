"""The flight recorder of a job: what sets the recordings of all ranks aside (HOROVOD_FLIGHT_RECORDER).

A rank that sees something wrong raises an alarm; rank 0 gives it a number and tells all ranks, which set aside what they have
under one name.  What a job ends with needs no alarm: the recording stays then.
"""

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from ...timeline.errors import TraceError
from ...timeline.record import recorder
from ...timeline.record.flight import FlightRecorder, SlowSteps
from ...timeline.record.flight_requests import Requests
from ...timeline.record.shard_writer import ShardWriter, uncaught

_log = logging.getLogger("tlkit.runtime")

SLOW_STEPS: Final = "slow-steps"
STALL: Final = "stall"
SIGNAL: Final = "signal"
CALL: Final = "call"
REQUEST: Final = "request"

#: Requests that are obeyed.  The rest of what may be set aside is for alarms that nobody asks for.
MAX_REQUESTS: Final = 10

#: How long the end of a job waits for a copy.
COPY_TIMEOUT_S: Final = 10.0

Alarm = Callable[[str, str], None]
"""Called with the kind of an alarm and a sentence that says why."""


class Flight:
    """The flight recorder of one rank, while it is on."""

    def __init__(self, folder: str, writer: ShardWriter, rank: int, alarm: Alarm) -> None:
        """Begin to record.

        Args:
            folder: HOROVOD_FLIGHT_RECORDER.
            alarm: tells all ranks.

        Raises:
            TraceError: nothing can be written there.
        """
        try:
            writer.wanted.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(f"the flight recorder cannot write into {Path(folder)}: {error.strerror}") from error
        self._alarm = alarm
        self._recorder = FlightRecorder(folder, writer, rank)
        self._earlier_handler: object = None
        if rank == 0:
            slow = SlowSteps()
            writer.on_step = lambda duration_ns: self._raise_if(SLOW_STEPS, slow.add(duration_ns))
        self._copying: list[threading.Thread] = []
        self._obeyed: set[str] = set()
        self._requests: Requests | None = None
        self._listen()
        if writer.header.local_rank == 0:
            self._expect_requests(writer)
        try:
            recorder.start_timeline(writer)
        except TraceError:
            self._stop_listening()
            raise

    def _raise_if(self, kind: str, why: str) -> None:
        if why:
            self._alarm(kind, why)

    def _expect_requests(self, writer: ShardWriter) -> None:
        """One rank of each host looks for requests, on the writer's thread, which is awake whatever the training does."""
        try:
            requests = self._requests = Requests(writer.wanted.parent)
        except OSError as error:
            _log.warning("the flight recorder hears no requests at %s: %s", writer.wanted.parent, error.strerror)
            return
        writer.add_drain(lambda: self._raise_if(REQUEST, requests.look()))

    def _is_refused(self, name: str, why: str) -> bool:
        """Whether it is a request that was obeyed, as those that come from several hosts are, or one too many."""
        if name.partition("-")[2] != REQUEST:
            return False
        if why in self._obeyed or len(self._obeyed) >= MAX_REQUESTS:
            return True
        self._obeyed.add(why)
        return False

    def set_aside(self, name: str, why: str) -> None:
        """Copy the recording, on a thread of its own: whoever hears the alarm has other work."""
        if self._is_refused(name, why):
            return
        thread = threading.Thread(target=self._recorder.set_aside, args=(name, why), name="tlkit-flight", daemon=True)
        self._copying.append(thread)
        thread.start()

    def finish(self, reason: str) -> None:
        """The runtime has ended, and the timeline is closed.

        Args:
            reason: why the job has failed; "" if it has not.
        """
        self._stop_listening()
        if self._requests is not None:
            self._requests.stop()
        # What is being copied is not removed under the copy.
        for thread in self._copying:
            thread.join(COPY_TIMEOUT_S)
        self._recorder.finish(reason or uncaught())

    def _listen(self) -> None:
        """SIGUSR2 is an alarm, unless the program has its own use for it."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            self._earlier_handler = signal.signal(signal.SIGUSR2, self._signalled)

    def _stop_listening(self) -> None:
        if self._earlier_handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
            self._earlier_handler = None

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        # On a thread: what the signal has interrupted may hold the locks that an alarm takes.
        threading.Thread(target=self._alarm, args=(SIGNAL, "SIGUSR2 came"), name="tlkit-signal", daemon=True).start()
