"""How a job ends well: the first rank that shuts down ends it for all, and all do first what was agreed on."""

import logging
from collections.abc import Callable
from typing import Final

from .links import Links
from .messages import Drained, Goodbye

_log = logging.getLogger("tlkit.runtime")

#: How long a rank that has done everything waits for ranks that have not, or do not say so: one may be stopped for good.
SHUTDOWN_TIMEOUT_S: Final = 10.0


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
        self._give_up_ns: int | None = None
        """Until when this rank, which has done everything, waits for the others; None as long as it has not."""
        self._drained: set[int] = set()
        self.said_goodbye = False
        self.under_way = False
        """Whether the job is ending."""
        self.finished = False
        """Whether this rank may go."""
        self.gave_up = False
        """Whether it goes without others, of which it does not know how far they are."""
        self.why_alone = ""
        """Whom it has waited for in vain."""

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
        if rank not in self._drained:
            self.gave_up = True
        self.hear_drained(rank)

    @property
    def next_ns(self) -> int | None:
        """When `proceed` has something to do though nothing happens; None if it has not."""
        return None if self.finished else self._give_up_ns

    def proceed(self, load: int, now_ns: int) -> None:
        """Shut down when all ranks have executed all responses: a transport must not close while a peer uses it.

        Args:
            load: batches that this rank has to execute yet.
        """
        if self._give_up_ns is None:
            if load:
                return
            self._give_up_ns = now_ns + round(SHUTDOWN_TIMEOUT_S * 1e9)
            self._drained.add(self._rank)
            if not self._leads:
                self._links.send(0, Drained())
                if 0 not in self._links:
                    self.finished = True
        if self._leads and not self._missing():
            self._links.send_to_all(Drained())
            self.finished = True
        elif now_ns >= self._give_up_ns:
            self.give_up()

    def give_up(self) -> None:
        """Go without the others.  Called by any thread."""
        if self.finished:
            return
        # Before rank 0 has told the others that the job ends, it is rank 0 that does not answer.
        missing = self._missing() if self.under_way or self._leads else [0]
        whom = f"rank {', '.join(map(str, missing))}" if missing else "the other ranks"
        self.why_alone = f"{whom} did not end within {SHUTDOWN_TIMEOUT_S:g} s"
        _log.warning("rank %d: %s", self._rank, self.why_alone)
        self.gave_up = True
        self.finished = True

    def _missing(self) -> list[int]:
        """Ranks that are connected and have not done everything, as far as this rank knows."""
        return sorted(set(self._links.ranks) - self._drained)
