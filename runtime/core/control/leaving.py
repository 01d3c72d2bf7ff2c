"""How a job ends well: the first rank that shuts down ends it for all, and all do first what was agreed on."""

import logging
from collections.abc import Callable

from .links import Links
from .messages import Drained, Goodbye

_log = logging.getLogger("tlkit.runtime")


class Departure:
    """One rank's way out."""

    def __init__(self, rank: int, links: Links, *, leads: bool, close: Callable[[str], None]) -> None:
        """Stay, for now.

        Args:
            leads: whether this is rank 0, which tells the others.
            close: refuses further tensors and fails those that wait, for the reason given.
        """
        self._rank = rank
        self._links = links
        self._leads = leads
        self._close = close
        self._said_drained = False
        self._drained: set[int] = set()
        self.said_goodbye = False
        self.under_way = False
        """Whether the job is ending."""
        self.finished = False
        """Whether this rank may go."""

    def say_goodbye(self, said: str) -> None:
        """This rank wants to end the job."""
        self.said_goodbye = True
        if self.under_way:
            return
        if self._leads:
            self.hear_goodbye(said)
        elif 0 in self._links:
            self._links.send(0, Goodbye(said))
        else:
            self._leave("rank 0 is gone")

    def hear_goodbye(self, reason: str) -> None:
        """Rank 0 hears that a rank wants to end the job, or the others that rank 0 ends it."""
        if self._leads and not self.under_way:
            self._links.send_to_all(Goodbye(reason))
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        if self.under_way:
            return
        self.under_way = True
        self._close(reason)

    def hear_drained(self, rank: int) -> None:
        """A rank has done everything, or rank 0 says that all have."""
        self._drained.add(rank)
        if not self._leads:
            self.finished = True

    def lose(self, rank: int) -> None:
        """A connection was closed during the shutdown."""
        self.hear_drained(rank)

    def proceed(self, load: int) -> None:
        """Shut down when all ranks have executed all responses: a transport must not close while a peer uses it.

        Args:
            load: batches that this rank has to execute yet.
        """
        if not self._said_drained and load == 0:
            self._said_drained = True
            self._drained.add(self._rank)
            if not self._leads:
                self._links.send(0, Drained())
                if 0 not in self._links:
                    self.finished = True
        if self._leads and self._said_drained and not set(self._links.ranks) - self._drained:
            self._links.send_to_all(Drained())
            self.finished = True
