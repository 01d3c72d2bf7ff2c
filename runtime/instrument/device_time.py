"""When a CUDA device does what the training thread hands it: events on its streams, read on the recorder's clock.

Events tell only the time between two of them.  So at every flush one more is recorded on a stream of its own, which is always
idle and therefore passes it at once: it is known on the host's clock within the time that this takes, a few microseconds, and
is the anchor of what was recorded since.  The training never waits for any of this.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from ...timeline import recorder
from ...timeline.vocabulary import Category, LaneKind

#: Spans that may wait for the device; more than this are dropped, since nobody reads them.
_MOST_PENDING: Final = 100_000

_NS_PER_MS: Final = 1e6


class _Pending(NamedTuple):
    lane: LaneKind
    category: Category
    name: str
    begun: Any
    ended: Any
    args: dict[str, Any] | None


class CudaEvents:
    """Events of the current CUDA device."""

    def __init__(self) -> None:
        """Take the calling thread's current device."""
        self._device = torch.cuda.current_device()
        cuda: Any = torch.cuda  # untyped
        self._make: Callable[[], Any] = lambda: cuda.Event(enable_timing=True)
        self._idle: Any = cuda.Stream(self._device)

    def mark(self) -> Any:
        """An event behind what the calling thread's stream holds."""
        event = self._make()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def anchor(self) -> tuple[Any, int]:
        """An event, and the recorder's clock when the device passed it (ns, give or take half of the wait for it)."""
        event = self._make()
        before_ns = recorder.now_ns()
        event.record(self._idle)
        event.synchronize()
        return event, (before_ns + recorder.now_ns()) // 2


class DeviceTime:
    """Turns pairs of marks into spans once the device has passed them (`recorder.Device`)."""

    def __init__(self, events: Any = None) -> None:
        """Take the first anchor.

        Args:
            events: where events come from; None for the CUDA device in use.
        """
        self._events = CudaEvents() if events is None else events
        self._pending: deque[_Pending] = deque(maxlen=_MOST_PENDING)
        self._anchor: Any
        self._anchor_ns: int
        self._anchor, self._anchor_ns = self._events.anchor()
        self._draining = threading.Lock()

    def mark(self) -> Any:
        """See `recorder.Device`."""
        return self._events.mark()

    def span(
        self, lane: LaneKind, category: Category, name: str, marks: tuple[Any, Any], args: dict[str, Any] | None
    ) -> None:
        """See `recorder.Device`."""
        self._pending.append(_Pending(lane, category, name, *marks, args))

    def drain(self) -> None:
        """Write what the device has passed, and take a new anchor.  Called on the writer's thread, before every flush."""
        with self._draining:
            later: list[_Pending] = []
            while self._pending:
                span = self._pending.popleft()
                if span.ended.query():
                    recorder.complete(
                        span.lane,
                        span.category,
                        span.name,
                        self._at_ns(span.begun),
                        self._at_ns(span.ended),
                        span.args,
                    )
                else:
                    later.append(span)
            self._pending.extendleft(reversed(later))
            self._anchor, self._anchor_ns = self._events.anchor()

    def _at_ns(self, event: Any) -> int:
        elapsed_ms: float = self._anchor.elapsed_time(event)
        return self._anchor_ns + round(elapsed_ms * _NS_PER_MS)


class _Followed:
    """The device that is followed."""

    device: DeviceTime | None = None
    awaited = False


def install() -> None:
    """Follow the device of this rank as soon as it uses one: which one it is, a script says after `init`."""
    _Followed.awaited = torch.cuda.is_available()


def look() -> None:
    """Before a forward pass: follow the device, if there is one by now."""
    if not _Followed.awaited:
        return
    cuda: Any = torch.cuda  # untyped
    if cuda.is_initialized():
        _Followed.awaited = False
        follow(DeviceTime())


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
