"""When a CUDA device does what the training thread hands it: events on its streams, read on the recorder's clock.

Events tell only the time between two of them.  So at every flush one more is recorded on a stream of its own, which is mostly
idle and therefore passes it at once: it is known on the host's clock within the time that this takes, a few microseconds, and
is the anchor of what was recorded since.  The training never waits for any of this.

While somebody captures a CUDA graph, CUDA is left alone (captures.py): a mark would become a part of the graph, and a question
from another thread would end the capture.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from ...timeline.record import recorder
from ...timeline.vocabulary import GPU_CLOCK_OFF, Category, LaneKind
from . import captures, own_device

_log = logging.getLogger("tlkit.instrument")

#: Spans that may wait for the device; what comes when there are so many is dropped, and counted.
_MAX_PENDING: Final = 100_000
#: A span about which CUDA answers with an error so often is dropped, and counted.
_MAX_FAILURES: Final = 5
#: After so many errors at one flush the rest is not asked about.
_MAX_FAILURES_AT_ONCE: Final = 20
#: How long the end of a recording waits for the device to reach the end of the last step.
_SETTLE_S: Final = 2.0
#: A clock of a device may run away from the host's by so much.
_DRIFT: Final = 1e-4

#: A device that needs so long to come by an idle stream has no idle streams: what that tells is worth nothing.
_PATIENCE_S: Final = 0.005
#: Without a first anchor nothing can be told.
_FIRST_PATIENCE_S: Final = 5.0
_QUICK_LOOKS, _BETWEEN_LOOKS_S = 50, 1e-4

_NS_PER_MS: Final = 1e6


class _Pending:
    """A span that the device may not have passed."""

    __slots__ = ("args", "begun", "category", "ended", "failures", "lane", "name")

    def __init__(
        self, lane: LaneKind, category: Category, name: str, marks: tuple[Any, Any], args: dict[str, Any] | None
    ) -> None:
        self.lane, self.category, self.name = lane, category, name
        self.begun, self.ended = marks
        self.args = args
        self.failures = 0


class Anchor(NamedTuple):
    """An event of which it is known when the device passed it."""

    event: Any
    at_ns: int
    """On the recorder's clock."""
    uncertainty_ns: int


class CudaEvents:
    """Events of the current CUDA device."""

    def __init__(self) -> None:
        """Take the calling thread's current device."""
        self._device = torch.cuda.current_device()
        cuda: Any = torch.cuda  # untyped
        self._make: Callable[[], Any] = lambda: cuda.Event(enable_timing=True)
        self._idle: Any = cuda.Stream(self._device)
        self._computing: Any = torch.cuda.current_stream(self._device)

    def mark(self) -> Any:
        """An event behind what the calling thread's stream holds."""
        event = self._make()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_computed_on(self, stream: Any) -> bool:
        """See `recorder.Device`."""
        current: Any = torch.cuda.current_stream(self._device)
        return bool(current == self._computing and (stream is None or stream == current))

    def anchor(self, patience_s: float = _PATIENCE_S) -> Anchor:
        """An event that an idle stream passes now.

        Raises:
            RuntimeError: it has not within `patience_s`: the stream waits for others, as with CUDA_DEVICE_MAX_CONNECTIONS=1, or
                the device hangs.
        """
        event = self._make()
        before_ns = recorder.now_ns()
        event.record(self._idle)
        looks = 0
        while not event.query():
            looks += 1
            if recorder.now_ns() - before_ns > patience_s * 1e9:
                raise RuntimeError(f"the device did not reach the event within {patience_s:g} s")
            time.sleep(0 if looks < _QUICK_LOOKS else _BETWEEN_LOOKS_S)
        after_ns = recorder.now_ns()
        return Anchor(event, (before_ns + after_ns) // 2, (after_ns - before_ns + 1) // 2)


class DeviceTime:
    """Turns pairs of marks into spans once the device has passed them (`recorder.Device`)."""

    def __init__(self, events: Any = None) -> None:
        """Take the first anchor.

        Args:
            events: where events come from; None for the CUDA device in use.

        Raises:
            RuntimeError: the device does not answer.
        """
        self._events = CudaEvents() if events is None else events
        self._pending: deque[_Pending] = deque()
        self._anchor: Anchor = self._events.anchor(_FIRST_PATIENCE_S)
        self._ends_ns: dict[int, int] = {}
        """Where the last collective of each process group ended: they run one after the other."""
        self.dropped = 0
        """Spans that were given up."""

    def mark(self) -> Any:
        """See `recorder.Device`; None while a graph is captured."""
        return None if captures.are_under_way() else self._events.mark()

    def span(
        self, lane: LaneKind, category: Category, name: str, marks: tuple[Any, Any], args: dict[str, Any] | None
    ) -> None:
        """See `recorder.Device`."""
        if marks[0] is None or marks[1] is None:
            return  # captured, not executed
        if len(self._pending) < _MAX_PENDING:
            self._pending.append(_Pending(lane, category, name, marks, args))
        else:
            self._drop()

    def is_computed_on(self, stream: Any) -> bool:
        """See `recorder.Device`."""
        return not captures.are_under_way() and bool(self._events.is_computed_on(stream))

    def times_ns(self, marks: tuple[Any, Any]) -> tuple[int, int] | None:
        """See `recorder.Device`."""
        if marks[0] is None or marks[1] is None:
            return None
        with captures.kept_out() as free:
            try:
                return (self._at_ns(marks[0]), self._at_ns(marks[1])) if free else None
            except RuntimeError as error:  # CUDA's
                _log.debug("times of the device: %s", error)
                return None

    def drain(self) -> None:
        """Write what the device has passed, and take a new anchor.  Called on the writer's thread, before every flush."""
        with captures.kept_out() as free:
            if not free:
                return
            self._write_passed()
            try:
                self._take(self._events.anchor())
            except RuntimeError as error:  # CUDA's; the old one will do for a while
                _log.debug("no anchor: %s", error)
            # What is between this anchor and the next is not known better.
            old = self._anchor
            recorder.counter(GPU_CLOCK_OFF, old.uncertainty_ns + round(max(recorder.now_ns() - old.at_ns, 0) * _DRIFT))

    def settle(self) -> None:
        """See `recorder.Device`."""
        deadline_s = time.monotonic() + _SETTLE_S
        self.drain()
        while self._pending and time.monotonic() < deadline_s:
            time.sleep(0.005)
            self.drain()
        while self._pending:
            self._pending.popleft()
            self._drop()
        if self.dropped:
            _log.warning(
                "%d spans of the device are missing from the timeline: CUDA did not return their times", self.dropped
            )

    def _take(self, anchor: Anchor) -> None:
        """Use a new anchor unless the old one, as old as it is, is known better: a stream that had to wait tells little."""
        old = self._anchor
        if anchor.uncertainty_ns <= old.uncertainty_ns + (anchor.at_ns - old.at_ns) * _DRIFT:
            self._anchor = anchor

    def _write_passed(self) -> None:
        later: list[_Pending] = []
        failures = 0
        while self._pending and failures < _MAX_FAILURES_AT_ONCE:
            span = self._pending.popleft()
            try:
                if span.ended.query():
                    self._write(span)
                else:
                    later.append(span)
            except RuntimeError as error:  # CUDA's
                failures += 1
                span.failures += 1
                _log.debug("a span of the device: %s", error)
                if span.failures < _MAX_FAILURES:
                    later.append(span)
                else:
                    self._drop()
        self._pending.extendleft(reversed(later))

    def _write(self, span: _Pending) -> None:
        start_ns, end_ns = self._at_ns(span.begun), self._at_ns(span.ended)
        writer = recorder.timeline()
        if span.category is Category.COLLECTIVE and span.args is not None and writer is not None:
            # A rank has arrived when its device has, and not when its host said so, which is far ahead.
            span.args["submitted"] = writer.ts(start_ns)
            group = span.args.get("process_set", -1)
            if "peer" not in span.args:
                start_ns = min(max(start_ns, self._ends_ns.get(group, 0)), end_ns)
                self._ends_ns[group] = end_ns
        recorder.complete(span.lane, span.category, span.name, start_ns, end_ns, span.args)

    def _drop(self) -> None:
        self.dropped += 1
        writer = recorder.timeline()
        if writer is not None:
            writer.lose()

    def _at_ns(self, event: Any) -> int:
        elapsed_ms: float = self._anchor.event.elapsed_time(event)
        return self._anchor.at_ns + round(elapsed_ms * _NS_PER_MS)


class _Followed:
    """The device that is followed."""

    device: DeviceTime | None = None
    awaited = False


def install() -> None:
    """Follow the device of this rank as soon as it uses one: which one it is, a script says after `init`."""
    _Followed.awaited = torch.cuda.is_available()


def look(module: torch.nn.Module) -> None:
    """Before a forward pass: follow the device, if the model is on one."""
    if not _Followed.awaited or captures.are_under_way():
        return
    parameter = next(module.parameters(), None)
    cuda: Any = torch.cuda  # untyped
    if cuda.is_initialized() and (parameter is None or parameter.is_cuda):
        _Followed.awaited = False
        own_device.note()
        try:
            follow(DeviceTime())
        except RuntimeError as error:  # the training goes on
            _log.warning("what the device does is not recorded: %s", error)


def follow(device: DeviceTime) -> None:
    """Put phases on the compute lane when `device` does them."""
    _Followed.device = device
    recorder.use_device(device)
    recorder.add_drain(device.drain)


def uninstall() -> None:
    """Take the training thread for what computes again."""
    _Followed.awaited = False
    device, _Followed.device = _Followed.device, None
    if device is not None:
        recorder.remove_drain(device.drain)
        recorder.use_device(None)
