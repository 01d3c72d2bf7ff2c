"""What rank 0 does for all: it takes note of what ranks ask for, sends out what is ready, and watches who does not come on."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ..config import Config
from ..executor import Executor
from .autotune import Autotuner
from .coordinator import Coordinator, Orders, share_out, split
from .links import Links
from .messages import Progress, Ready, Work, encode
from .stalls import describe_stall, report_behind, report_stalls
from .watch import Watch, no_answer_of

_log = logging.getLogger("tlkit.runtime")

#: Batches that may be under way or queued before the coordinator holds further ones back.
MAX_QUEUED: Final = 2


class Desk:
    """Rank 0's part in the control plane."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        rank: int,
        hosts: Sequence[str],
        links: Links,
        executor: Executor,
        config: Config,
        clock_ns: Callable[[], int],
        execute: Callable[[Work], None],
        alarm: Callable[[str, str], None],
    ) -> None:
        """Serve the ranks on `hosts`.

        Args:
            execute: does what this rank is told.
            alarm: tells all ranks that something is wrong: its kind, and why.
        """
        self.coordinator = coordinator
        self._rank = rank
        self._hosts = hosts
        self._links = links
        self._executor = executor
        self._config = config
        self._clock_ns = clock_ns
        self._execute = execute
        self._alarm = alarm
        self._autotuner = Autotuner(config) if config.autotune else None
        self._offsets_ns = dict.fromkeys(range(len(hosts)), 0)
        self.watch = Watch(rank, links, coordinator.receipts, coordinator.name_told_to)
        self.is_holding = False
        """Whether something is ready that is held back."""
        self.wanted_threshold_nbytes = coordinator.fusion_threshold_nbytes
        """Set by any thread; holds from the next batch on."""
        self._check_interval_ns = round(min(max(config.stall_warning_s / 4, 0.05), 15.0) * 1e9)
        self._next_check_ns = clock_ns() + self._check_interval_ns
        self._next_warning_ns = 0

    def note_offset(self, rank: int, offset_ns: int) -> None:
        """What to add to a rank's clock."""
        self._offsets_ns[rank] = offset_ns

    def take_note(self, rank: int, ready: Ready) -> None:
        """`rank` asks for something.

        Raises:
            ValueError: see `Coordinator.receive`.
        """
        self.coordinator.receive(rank, ready, self._offsets_ns[rank], self._clock_ns())

    def dispatch(self) -> float | None:
        """Send out what is ready, unless so much is under way that waiting makes larger batches.

        Returns:
            The cycle time in s that all shall keep from now on, None for no change.
        """
        coordinator = self.coordinator
        if self.wanted_threshold_nbytes != coordinator.fusion_threshold_nbytes and self._autotuner is None:
            coordinator.fusion_threshold_nbytes = self.wanted_threshold_nbytes
        # Set before the executor is asked, so that a batch which ends in between wakes the thread.
        self.is_holding = coordinator.has_ready
        if not self.is_holding or self._links.is_congested:
            return None
        if self._executor.load >= MAX_QUEUED and not coordinator.is_full:
            return None
        self.is_holding = False
        nbytes = coordinator.ready_nbytes
        orders = coordinator.take()
        if orders is None:
            return None
        self.watch.is_open = True
        cycle_time_s = None if self._autotuner is None else self._tune(self._autotuner, orders, nbytes)
        for part in split(orders):
            self._send_out(part)
        return cycle_time_s

    def _send_out(self, orders: Orders) -> None:
        works = share_out(orders, self._rank, self._links.ranks)
        payloads: dict[int, bytes] = {}
        for rank, work in works.items():
            if rank != self._rank:
                # Ranks that get the same share one object; it is encoded once.
                payload = payloads.get(id(work))
                if payload is None:
                    payload = payloads[id(work)] = encode(work)
                self._links.send_encoded(rank, payload)
        if self._rank in works:
            self._execute(works[self._rank])

    def _tune(self, autotuner: Autotuner, orders: Orders, nbytes: int) -> float | None:
        settings = autotuner.observe(orders, nbytes, self._clock_ns())
        if settings is None:
            return None
        self.coordinator.fusion_threshold_nbytes = settings.fusion_threshold_nbytes
        self._links.send_to_all(Work([], cycle_time_s=settings.cycle_time_s))
        return settings.cycle_time_s

    # What does not come on.

    @property
    def is_idle(self) -> bool:
        """Whether no operation is awaited."""
        return self.coordinator.is_idle and not self.watch.is_open

    @property
    def next_check_ns(self) -> int | None:
        """When `check` has something to do; None if not before something happens."""
        return None if not self._config.stall_check or self.is_idle else self._next_check_ns

    def check(self) -> str:
        """Warn of tensors that wait for some ranks, and of ranks that do not come on; returns why the job has to end, or ""."""
        now_ns = self._clock_ns()
        if not self._config.stall_check or now_ns < self._next_check_ns:
            return ""
        self._next_check_ns = now_ns + self._check_interval_ns
        self._note_own()
        if self.watch.is_open:
            self.watch.check(now_ns)
        longer_ns = round(self._config.stall_warning_s * 1e9)
        stalled = self.coordinator.find_stalled(now_ns, longer_ns)
        behind = self.watch.find_behind(now_ns, longer_ns)
        if not stalled and behind is None:
            return ""
        quiet = now_ns < self._next_warning_ns
        if not quiet:
            self._next_warning_ns = now_ns + max(longer_ns, 10**8)
            self._alarm("stall", describe_stall(stalled, behind, self._hosts))
        reason = "" if behind is None else report_behind(behind, self._hosts, self._config, quiet=quiet)
        missing = {rank for tensor in stalled for rank in tensor.missing_ranks}
        silent = self.watch.silent_of(missing, now_ns)
        self.watch.ask(missing - self.watch.asked.keys(), now_ns)
        return reason or report_stalls(
            stalled, self._config, quiet=quiet, silent=no_answer_of(silent, self._hosts) if silent else ""
        )

    def _note_own(self) -> None:
        self.watch.heard(self._rank, Progress(self._executor.done, self._executor.begun))

    def blame(self) -> str:
        """Who may be at fault for a failure, of those that were asked."""
        self._note_own()
        return self.watch.blame(self._hosts)
