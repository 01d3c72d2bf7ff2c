"""A shard in which only some steps are in full (HOROVOD_TIMELINE_EVERY, HOROVOD_TIMELINE_LEVEL=steps).

Of the others `tlkit_steps` events keep the sums of their parts (step_sums.py) and what they got of the processor (step_loads.py),
many steps in one event.  Which records belong to which step is told by their order: a step's own span comes when it has ended,
and after it the counters of the whole step, which have the time of its end.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..model.step_loads import StepLoads
from ..model.step_sums import PARTS, StepSums, Sums
from ..vocabulary import LANE_TIDS, PROCESS_CPU_COUNTER, STEP, LaneKind
from .shard_format import ShardFormat, ShardHeader, TensorLife

STEPS_EVENT: Final = "tlkit_steps"

#: Sums wait for others to come along for as long as this, or until there are so many.
WRITE_AFTER_S: Final = 2.0
WRITE_AFTER_STEPS: Final = 200

_STEPS: Final = LANE_TIDS[LaneKind.STEPS]
_US: Final = 1000


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which steps are recorded in full: the first `whole` of every `every`; none if `whole` is 0."""

    every: int
    whole: int

    def is_whole(self, step: int) -> bool:
        """Whether a step is recorded in full."""
        return step % self.every < self.whole


NO_STEP: Final = Sampling(1, 0)


class SampledFormat(ShardFormat):
    """Lines of a shard whose steps are not all in full."""

    is_templated = False
    """What becomes of a record depends on the step that it is in."""

    def __init__(self, header: ShardHeader, sampling: Sampling, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with step 0.

        Args:
            clock: seconds, for how long sums have waited.
        """
        super().__init__(header)
        self._sampling = sampling
        self.keeps_tensors = sampling.whole > 0
        self._clock = clock
        self._sums = StepSums()
        self._loads = StepLoads()
        self._is_whole = self._was_whole = sampling.is_whole(0)
        """Whether the step that is under way is recorded in full, and the one before."""
        self._ended_ns = -1
        """End of the one before."""
        self._begun: dict[tuple[str, int], list[int]] = {}
        """When spans began that are open and in the file already, by name and lane."""
        self._first = 0
        self._kept: list[Sums] = []
        self._wait_until_s = 0.0
        self._is_due = False
        """Whether what is kept is written with the next record: first come the counters of the step that has ended."""

    def span(self, name: str, category: str, tid: int, start_ns: int, end_ns: int, args: dict[str, Any] | None) -> str:
        """See `ShardFormat`; of a step that is not in full its sums, when enough have come together."""
        if tid == _STEPS and name == STEP:
            return self._due() + self._end_step(start_ns, end_ns, args or {})
        if self._is_whole:
            return self._due() + super().span(name, category, tid, start_ns, end_ns, args)
        self._sums.add(name, category, tid, start_ns, end_ns)
        return self._due()

    def _due(self) -> str:
        return self.pending() if self._is_due else ""

    def _end_step(self, start_ns: int, end_ns: int, args: dict[str, Any]) -> str:
        number = int(args.get("step", 0))
        self._was_whole, self._is_whole = self._is_whole, self._sampling.is_whole(number + 1)
        self._ended_ns = end_ns
        if self._was_whole:
            self._loads.forget_step()
            return self.pending() + super().span(STEP, "step", _STEPS, start_ns, end_ns, args)
        text = self.pending() if self._kept and number != self._first + len(self._kept) else ""
        if not self._kept:
            self._first = number
            self._wait_until_s = self._clock() + WRITE_AFTER_S
        self._kept.append(self._sums.finish(start_ns, end_ns))
        self._loads.end_step()
        self._is_due = len(self._kept) >= WRITE_AFTER_STEPS or self._clock() >= self._wait_until_s
        return text

    def pending(self) -> str:
        """See `ShardFormat`: the event that tells the sums kept so far, if there are any."""
        kept, self._kept, self._is_due = self._kept, [], False
        if not kept:
            return ""
        load = self._loads.take()
        start_ns = kept[0][0]
        rows, reached_us = [], 0
        for begin_ns, *lengths_ns in kept:
            begin_us, (length_us, *parts_us) = (begin_ns - start_ns) // _US, (length // _US for length in lengths_ns)
            rows.append([begin_us - reached_us, length_us, *parts_us])
            reached_us = begin_us + length_us
        return self.metadata(STEPS_EVENT, {"first": self._first, "parts": PARTS, "us": rows, **load}, at_ns=start_ns)

    def begin(self, name: str, category: str, tid: int, at_ns: int, args: dict[str, Any] | None) -> str:
        """See `ShardFormat`.  What is open for long may be what hangs: it is written at any level."""
        self._begun.setdefault((name, tid), []).append(at_ns)
        return super().begin(name, category, tid, at_ns, args)

    def end(self, name: str, category: str, tid: int, at_ns: int, args: dict[str, Any] | None) -> str:
        """See `ShardFormat`.  What was begun is ended, whichever step it is in."""
        begun = self._begun.get((name, tid))
        if begun and not self._is_whole:
            self._sums.add(name, category, tid, begun[-1], at_ns)
        if begun:
            begun.pop()
        return super().end(name, category, tid, at_ns, args)

    def lives(self, lives: Sequence[TensorLife], process_set: int, seq: int, times_ns: tuple[int, int, int]) -> str:
        """See `ShardFormat`; of a step that is not in full only those whose beginning is in the file."""
        told = lives if self._is_whole else [life for life in lives if life.is_claimed]
        return super().lives(told, process_set, seq, times_ns) if told else ""

    def counter(self, name: str, at_ns: int, value: float) -> str:
        """See `ShardFormat`; of a step that is not in full its share of the sums."""
        has_ended = at_ns <= self._ended_ns
        if self._was_whole if has_ended else self._is_whole:
            return super().counter(name, at_ns, value)
        self._loads.add(name, value, has_ended=has_ended)
        return self._due() if name == PROCESS_CPU_COUNTER else ""

    def instant(self, name: str, at_ns: int) -> str:
        """See `ShardFormat`."""
        return super().instant(name, at_ns) if self._is_whole else ""

    def finish(self, events: int, lost: int, error: str = "") -> str:
        """See `ShardFormat`."""
        sums = self.pending()
        return sums + super().finish(events + bool(sums), lost, error)


def format_for(sampling: Sampling | None) -> Callable[[ShardHeader], ShardFormat]:
    """What turns records into lines of our own shards.

    Args:
        sampling: which steps are in full; None for all.
    """
    if sampling is None:
        return ShardFormat
    return lambda header: SampledFormat(header, sampling)
