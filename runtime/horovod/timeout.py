"""What scripts import from `horovod.runner.common.util.timeout`."""

import time


class TimeoutException(Exception):
    """Something took too long."""


class Timeout:
    """A time by which something has to be done."""

    def __init__(self, timeout: float, message: str) -> None:
        """Begin to count.

        Args:
            timeout: in seconds.
            message: may hold `{activity}` and `{timeout}`.
        """
        self._timeout_s, self._message = timeout, message
        self._until_s = time.monotonic() + timeout

    def remaining(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._until_s - time.monotonic())

    def timed_out(self) -> bool:
        """Whether none is left."""
        return time.monotonic() > self._until_s

    def check_time_out_for(self, activity: str) -> None:
        """Go on if time is left.

        Raises:
            TimeoutException: none is.
        """
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout_s))
