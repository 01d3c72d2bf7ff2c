"""Rank 0 watches who does not come on with what all ranks were told to do: one that is stopped, or whose interpreter is held.

It costs nothing while all is well.  Ranks say how far they are with what they ask for; one that has not come on for a while is
asked, and its control plane answers at once, whatever its training does.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..config import Config
from .links import Links
from .messages import Ask, Progress
from .receipts import Receipts

_log = logging.getLogger("tlkit.runtime")

#: What it means that a rank does not answer.
NO_ANSWER: Final = (
    "its process is stopped, its host is out of reach, or something in it holds Python's interpreter lock"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """Ranks that have not done what all were told."""

    ranks: tuple[int, ...]
    waiting_ns: int
    """For how long none of them has come on."""
    silent: bool
    """Whether they do not even answer."""
    what: str
    """The tensor."""


class Watch:
    """Who is behind, for how long, and who answers."""

    def __init__(self, rank: int, links: Links, receipts: Receipts, name_of: Callable[[int], str]) -> None:
        """Begin with no rank behind.

        Args:
            rank: the coordinator's own.
            name_of: names a tensor of what a rank was told last.
        """
        self._rank = rank
        self._links = links
        self._receipts = receipts
        self._name_of = name_of
        self._since: dict[int, tuple[int, int]] = {}
        """By rank how much it had done, and when that was noticed first (ns)."""
        self._begun: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        """Ranks that were asked and have not said anything since, and when they were asked (ns)."""
        self.is_open = False
        """Whether some rank may be behind."""

    def heard(self, rank: int, progress: Progress | None = None) -> None:
        """`rank` has said something."""
        self.asked.pop(rank, None)
        if progress is not None:
            self._begun[rank] = progress.begun
            self._receipts.note(rank, progress.done)

    def ask(self, ranks: Iterable[int], now_ns: int) -> None:
        """Ask how far they are."""
        for rank in ranks:
            if rank in self._links:
                self.asked.setdefault(rank, now_ns)
                self._links.send(rank, Ask())

    def ask_all(self, now_ns: int) -> None:
        """Ask all ranks."""
        self.ask(self._links.ranks, now_ns)

    def check(self, now_ns: int) -> None:
        """Note who is behind, and ask those that were so before.  Has to be called now and then while it `is_open`."""
        behind = self._receipts.behind()
        since = {}
        for rank, done in behind.items():
            before = self._since.get(rank)
            since[rank] = before if before is not None and before[0] == done else (done, now_ns)
        self._since = since
        self.is_open = bool(since)
        again = [rank for rank, (_, noticed_ns) in since.items() if noticed_ns != now_ns and rank not in self.asked]
        self.ask(again, now_ns)

    def find_behind(self, now_ns: int, longer_than_ns: int) -> Behind | None:
        """The ranks that other ranks wait for since longer than `longer_than_ns`, as far as `check` knows."""
        late = [rank for rank, (_, since_ns) in self._since.items() if now_ns - since_ns > longer_than_ns]
        if not late:
            return None
        silent = self.silent_of(late, now_ns)
        ranks = silent or self._not_begun(late) or late
        waiting_ns = now_ns - max(self._since[rank][1] for rank in ranks)
        return Behind(
            ranks=tuple(sorted(ranks)), waiting_ns=waiting_ns, silent=bool(silent), what=self._name_of(ranks[0])
        )

    def silent_of(self, ranks: Iterable[int], now_ns: int) -> list[int]:
        """Those that were asked and do not answer.  Who was asked just now has had no time to."""
        return [rank for rank in ranks if self.asked.get(rank, now_ns) < now_ns]

    def _not_begun(self, ranks: Sequence[int]) -> list[int]:
        """Those that have begun less than others."""
        most = max((self._begun.get(rank, 0) for rank in ranks), default=0)
        return [rank for rank in ranks if self._begun.get(rank, 0) < most]

    def blame(self, hosts: Sequence[str]) -> str:
        """The ranks that may have caused a failure, after `ask_all`; "" if none stands out."""
        if self.asked:
            return no_answer_of(self.asked, hosts)
        late = self._not_begun(list(self._receipts.behind()))
        if not late:
            return ""
        return ", ".join(f"rank {rank} on {hosts[rank]}" for rank in sorted(late)) + " had not begun it"


def no_answer_of(ranks: Iterable[int], hosts: Sequence[str]) -> str:
    """Says that these ranks do not answer."""
    return ", ".join(f"rank {rank} on {hosts[rank]}" for rank in sorted(ranks)) + f" did not answer: {NO_ANSWER}"


class LeaderWatch:
    """The other ranks watch rank 0: whether it lives while they wait for what it says."""

    def __init__(self, host: str, config: Config, is_waiting: Callable[[], bool]) -> None:
        """Begin with nothing asked.

        Args:
            host: rank 0's.
            is_waiting: whether this rank waits for something at all.
        """
        self._host = host
        self._config = config
        self._is_waiting = is_waiting
        self._patience_ns = round(config.stall_warning_s * 1e9)
        self._since_ns = 0
        self._asked_ns = 0
        self._warned = False

    @property
    def is_silent(self) -> bool:
        """Whether rank 0 was asked for a sign of life and has not given any."""
        return bool(self._asked_ns)

    def ask(self, links: Links, now_ns: int) -> None:
        """Ask rank 0 for a sign of life."""
        self._since_ns = self._since_ns or now_ns
        self._asked_ns = now_ns
        links.send(0, Ask())

    def asked(self, now_ns: int) -> None:
        """Rank 0 was asked for something."""
        self._since_ns = self._since_ns or now_ns

    def heard(self, now_ns: int) -> None:
        """Rank 0 has said something."""
        self._since_ns = now_ns
        self._asked_ns = 0
        self._warned = False

    @property
    def next_ns(self) -> int | None:
        """When `check` has something to do; None if not before something happens."""
        if not self._since_ns or not self._config.stall_check:
            return None
        if not self._asked_ns:
            return self._since_ns + self._patience_ns // 2
        if not self._warned:
            return self._since_ns + self._patience_ns
        limit_s = self._config.stall_shutdown_s
        return self._since_ns + round(limit_s * 1e9) if limit_s else None

    def check(self, links: Links, now_ns: int) -> str:
        """Ask rank 0 for a sign of life, and warn if there is none; returns why the job has to end, or ""."""
        due_ns = self.next_ns
        if due_ns is None or now_ns < due_ns:
            return ""
        if not self._is_waiting():
            self._since_ns = 0
            return ""
        if not self._asked_ns:
            self.ask(links, now_ns)
            return ""
        what = f"rank 0 on {self._host} has not answered for {(now_ns - self._since_ns) / 1e9:.1f} s: {NO_ANSWER}"
        if not self._warned:
            self._warned = True
            _log.warning("%s. The other ranks wait.", what)
            return ""
        return what
