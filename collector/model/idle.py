"""Why a device is idle: each moment of its idle time goes to one reason.

A gap ends when the device begins its next activity.  Where the trace shows the call that launched this activity, the gap is
divided at the end of that call:

- after it the work was there, and the device did not run it: up to MAX_BETWEEN_NS this is what a device needs between kernels
  (`between-kernels`), longer it is `queued`: the stream waits for another one, or kernels of which the trace knows nothing run;
- before it the host had not launched yet, and what the launching thread does at that moment is the reason; where that thread
  shows nothing, what the other threads do.

A host that was blocked until the device had caught up starts anew with an empty queue.  What it then needs to launch would have
been hidden if it had not been blocked, so this time, up to how long it was blocked before the gap, goes to the blocking call;
long holes in which the trace shows nothing of it do not.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from .host_calls import Host, HostKind
from .intervals import EMPTY, Intervals, Times, intersect, normalise, subtract, total_within, union

LAUNCH: Final = "launch"
HOST_WORK: Final = "host-work"
INPUT: Final = "input"
BLOCKING_COPY: Final = "blocking-copy"
SYNCHRONISATION: Final = "synchronisation"
COLLECTIVE: Final = "collective"
HOST: Final = "host-elsewhere"
QUEUED: Final = "queued"
BETWEEN: Final = "between-kernels"
#: In the order in which they are shown.
REASONS: Final = (LAUNCH, HOST_WORK, INPUT, BLOCKING_COPY, SYNCHRONISATION, COLLECTIVE, HOST, QUEUED, BETWEEN)

#: From the end of a launch to the start of a kernel on an empty stream; so much later it does not wait for the host any more.
LAUNCH_LATENCY_NS: Final = 30_000
#: A device needs no longer from one queued kernel to the next.
MAX_BETWEEN_NS: Final = 50_000
#: A host that computes longer than this in one gap does something else than launching.
MAX_LAUNCH_NS: Final = 1_000_000
#: Python between two recorded operators; in longer holes nobody knows what the host does.
MAX_HOLE_NS: Final = 200_000

_STATES: Final = (
    (SYNCHRONISATION, (HostKind.SYNCHRONISING,)),
    (BLOCKING_COPY, (HostKind.COPYING,)),
    (INPUT, (HostKind.LOADING, HostKind.PREPROCESSING)),
    (COLLECTIVE, (HostKind.COLLECTIVE,)),
    (HOST_WORK, (HostKind.RUNTIME, HostKind.OPERATOR, HostKind.PYTHON)),
)


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The idle stretches of a device, and how the activity after each was launched."""

    starts: Times
    ends: Times
    until: Times
    """Until then the host is the reason; the start of the gap where the work was there before."""
    thread: Times
    """Place in Host.threads of who launched; -1 if unknown."""

    @property
    def intervals(self) -> Intervals:
        return normalise(self.starts, self.until)


def divide_idle(idle: Intervals, host: Host, launches: pd.DataFrame) -> dict[str, Intervals]:
    """The idle moments of one rank's device by reason (REASONS): disjoint, and together `idle`.

    Args:
        launches: rows of LAUNCH_COLUMNS of this rank; may be empty.
    """
    gaps = _launched(idle, host, launches)
    waiting = np.stack((gaps.until, gaps.ends), axis=1)
    is_short = gaps.ends - gaps.until <= MAX_BETWEEN_NS
    found: dict[str, list[Intervals]] = {reason: [] for reason in REASONS}
    found[BETWEEN].append(normalise(*waiting[is_short].T))
    found[QUEUED].append(normalise(*waiting[~is_short].T))
    for thread in np.unique(gaps.thread).tolist():
        of_thread = gaps.thread == thread
        mine = _Gaps(*(getattr(gaps, name)[of_thread] for name in ("starts", "ends", "until", "thread")))
        for reason, moments in _by_state(mine, host, thread).items():
            found[reason].append(moments)
    return {reason: union(*parts) if parts else EMPTY for reason, parts in found.items()}


def _launched(idle: Intervals, host: Host, launches: pd.DataFrame) -> _Gaps:
    starts, ends = idle[:, 0], idle[:, 1]
    until, thread = ends.copy(), np.full(len(idle), -1, dtype=np.int64)
    if not len(launches) or not len(idle):
        return _Gaps(starts, ends, until, thread)
    order = np.argsort(launches["start_ns"].to_numpy(), kind="stable")
    begun = launches["start_ns"].to_numpy()[order]
    following = np.searchsorted(begun, ends)
    known = following < len(begun)
    row = order[np.minimum(following, len(begun) - 1)]
    called = launches["launched_ns"].to_numpy()[row]
    # The kernel may begin before its call has returned.
    ready = np.where(called < 0, np.iinfo(np.int64).min, called + launches["call_ns"].to_numpy()[row])
    ready = np.where(known, ready, ends)
    until = np.clip(ready, starts, ends)
    # What begins this soon after its launch waits for nothing but the launch.
    is_late = (ready > starts - LAUNCH_LATENCY_NS) & (ends - until <= LAUNCH_LATENCY_NS)
    until = np.where(is_late, ends, until)
    place = {name: number for number, name in enumerate(host.threads)}
    of_code = np.array([place.get(str(name), -1) for name in launches["thread"].cat.categories] or [-1], dtype=np.int64)
    thread = np.where(known, of_code[launches["thread"].cat.codes.to_numpy()[row]], -1)
    return _Gaps(starts, ends, until, thread)


def _by_state(gaps: _Gaps, host: Host, thread: int) -> dict[str, Intervals]:
    """What the launching thread does while it is the reason."""
    left = gaps.intervals
    found: dict[str, list[Intervals]] = {}
    for on in dict.fromkeys((thread, -1)):
        for reason, kinds in _STATES:
            moments = host.moments(kinds, on)
            found.setdefault(reason, []).append(intersect(left, moments))
            left = subtract(left, moments)
        if on == thread:
            for reason, moments in _after_blocking(gaps, host, thread).items():
                # The time to launch after a blocking call is that call's.
                own = found[HOST_WORK].pop()
                # Whoever launches leaves no long hole: there the host does something else.
                holes = intersect(left[left[:, 1] - left[:, 0] <= MAX_LAUNCH_NS], moments)
                found[reason] += [holes, intersect(own, moments)]
                found[HOST_WORK].append(subtract(own, moments))
                left = subtract(left, holes)
    is_hole = left[:, 1] - left[:, 0] <= MAX_HOLE_NS
    busy = union(*found.pop(HOST_WORK), left[is_hole])
    worked = total_within(busy, gaps.starts, gaps.ends)
    is_long = worked > MAX_LAUNCH_NS
    long = normalise(gaps.starts[is_long], gaps.ends[is_long])
    by_reason = {reason: union(*parts) for reason, parts in found.items()}
    return by_reason | {LAUNCH: subtract(busy, long), HOST_WORK: intersect(busy, long), HOST: left[~is_hole]}


def _after_blocking(gaps: _Gaps, host: Host, thread: int) -> dict[str, Intervals]:
    """Moments in which the host catches up after it was blocked when the gap began."""
    calls = host.on(thread) & (host.kind <= int(HostKind.COPYING)) & host.takes_time
    starts, ends, kind = host.starts[calls], host.ends[calls], host.kind[calls]
    if not len(starts) or not len(gaps.starts):
        return {}
    last = np.searchsorted(starts, gaps.starts) - 1
    row = np.maximum(last, 0)
    was_blocked = (last >= 0) & (ends[row] >= gaps.starts - LAUNCH_LATENCY_NS)
    begin = np.maximum(ends[row], gaps.starts)
    lost = gaps.starts - starts[row]
    found = {}
    for reason, code in ((SYNCHRONISATION, HostKind.SYNCHRONISING), (BLOCKING_COPY, HostKind.COPYING)):
        chosen = was_blocked & (kind[row] == int(code)) & (begin < gaps.until)
        found[reason] = normalise(begin[chosen], np.minimum(begin + lost, gaps.until)[chosen])
    return found
