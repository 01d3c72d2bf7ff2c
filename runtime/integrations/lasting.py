"""A recording that a framework's callback begins and ends."""

import os

from ..runtime.instrument import standalone


class LastingRecording:
    """What a callback has begun, and ends; a recording that runs already is left to whoever began it."""

    def __init__(self, timeline: str | os.PathLike[str] | None) -> None:
        self._timeline = timeline
        self._begun: standalone.Recording | None = None

    def begin(self) -> None:
        """Record from here, if nothing is recorded yet; on every rank, after the ranks have met.

        Raises:
            UsageError: the launcher started several ranks, and they have not met yet.
        """
        if standalone.current() is None:
            self._begun = standalone.instrument(self._timeline)

    def end(self) -> None:
        """Finish the file.  Nothing to do the second time."""
        if self._begun is not None:
            self._begun.stop()
            self._begun = None
