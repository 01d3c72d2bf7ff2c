"""What ranks and the coordinator say to each other, once and for both sides.

Every message is a MessagePack array that starts with its tag, preceded on the wire by its length (`channel.py`).  In the
steady state a tensor is one small integer in either direction: the id that the coordinator gave to the request when it
first saw it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from ..kinds import Kind

#: A message longer than this is refused: nobody sends one, and a stray client must not make us allocate.
MAX_MESSAGE_NBYTES: Final = 2**28 - 1


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One rank asks for a collective on one tensor.  Equal requests are the same work again."""

    name: str
    """Full name, kind included: `allreduce.fc.weight`."""
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    """Of the tensor; for `add_process_set` the global ranks, for `remove_process_set` the id."""
    op: int = 1
    """A ReduceOp; SUM where the kind has none."""
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    """Global rank, for broadcast."""
    process_set: int = 0
    device: str = "cpu"
    priority: int = 0
    """Among what is ready, higher goes first.  The ranks need not agree; the set's first rank decides."""
    unpadded: tuple[int, ...] | None = None
    """Shape of the user's tensor (or how many elements it has), where what fills the memory up behind it is reduced as well."""


class Hello(msgspec.Struct, tag="hello", array_like=True):
    """First message of a rank, which has proved before that it belongs to the job (handshake.py)."""

    rank: int
    host: str
    boot_id: str
    local_rank: int | None
    process_sets: list[tuple[bool, list[int]]] = []
    """What the rank wants to start with: whether the set comes from an MPI communicator, and its ranks."""


class Welcome(msgspec.Struct, tag="welcome", array_like=True):
    """Answer to all ranks once all are there."""

    run_id: str
    hosts: list[str]
    local_ranks: list[int | None]
    origin_ns: int
    """Rank 0's monotonic clock at time 0 of the run."""
    origin_unix_ns: int
    process_sets: list[list[int]] = []
    """Ranks of the process sets 1, 2 and so on."""
    error: str = ""
    """Why there is nothing to join."""
    boot_id: str = ""
    """Of rank 0's kernel."""
    key: bytes = b""
    """Of this start of the job: with it the ranks mark what they send each other as pickles (sealing.py)."""


class ClockPing(msgspec.Struct, tag="ping", array_like=True):
    """A rank asks the coordinator what time it is."""

    sent_ns: int


class ClockPong(msgspec.Struct, tag="pong", array_like=True):
    """The coordinator's clock when it answered."""

    sent_ns: int
    coordinator_ns: int


class ClockReport(msgspec.Struct, tag="clock", array_like=True):
    """A rank's clock offset, with which the coordinator converts the rank's times to its own clock."""

    offset_ns: int


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """Tensors that a rank has submitted since it last said so.

    Those in `known` were submitted in any order with those in `fresh`.  What the order matters for (see `Kind.changes_ranks`) is
    the last of `fresh`, so whatever was submitted before it is handled before it.
    """

    fresh: list[Request]
    known: dict[int, list[int]]
    """Requests that the coordinator has seen from this rank before: by process set, as ranges of ids (`to_ranges`)."""
    times: list[int] = []
    """When each was submitted, fresh ones first, on this rank's clock (ns, as `to_runs` writes it); empty without a timeline."""
    done: int = 0
    """How many responses this rank has executed, of all that it was ever told."""
    values: dict[int, bytes] = {}
    """Values of small tensors (`values.py`), by place: fresh ones first, then the known ones as `known` has them."""


class Ask(msgspec.Struct, tag="ask", array_like=True):
    """The coordinator wants to know how far a rank is, which answers with its `Progress` at once if it lives."""


class Progress(msgspec.Struct, tag="progress", array_like=True):
    """How many responses a rank has executed, of all that it was ever told, and how many it has begun with."""

    done: int
    begun: int


class Response(msgspec.Struct, array_like=True):
    """One collective to execute, or an error to report."""

    seq: int
    process_set: int
    ids: list[int]
    """Ids of the tensors in buffer order, as ranges (`to_ranges`); empty when `names` says which."""
    names: list[str]
    """Name of each tensor; empty when every rank has seen all ids."""
    fresh_ids: list[int] = []
    """Id of each tensor in `names`, -1 for one that will not be remembered."""
    error: str = ""
    sizes: list[list[int]] = []
    """For allgather: first dimension by tensor and rank.  For a new process set: its id."""
    absent: list[Request] = []
    """What each tensor is like, for ranks that have joined and bring zeros; empty while none has."""
    arrivals_ns: list[int] = []
    """First rank of the process set only: when each rank had asked for the last of the tensors, on rank 0's clock."""
    results: list[bytes] = []
    """Of each tensor, if rank 0 had their values; empty if a transport moves them."""


class Work(msgspec.Struct, tag="work", array_like=True):
    """Responses in the order in which every rank executes them."""

    responses: list[Response]
    forgotten: dict[int, list[int]] = {}
    """Ids that are no longer valid, by process set."""
    cycle_time_s: float = -1.0
    """How long ranks shall collect tensors from now on; negative for no change."""


class Alarm(msgspec.Struct, tag="alarm", array_like=True):
    """Something is wrong that is worth a look: to the coordinator, and from it, with a number, to all ranks."""

    kind: str
    why: str
    number: int = 0


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """A rank could not execute a collective and cannot go on."""

    reason: str


class Abort(msgspec.Struct, tag="abort", array_like=True):
    """The job ends on all ranks, with the reason."""

    reason: str


class Goodbye(msgspec.Struct, tag="goodbye", array_like=True):
    """A rank shuts down (to the coordinator), or all do (from it)."""

    reason: str = ""


class Drained(msgspec.Struct, tag="drained", array_like=True):
    """A rank has executed all it was told to; from the coordinator: all have."""


Message = (
    Hello
    | Welcome
    | ClockPing
    | ClockPong
    | ClockReport
    | Ready
    | Ask
    | Progress
    | Work
    | Alarm
    | Failed
    | Abort
    | Goodbye
    | Drained
)


def to_ranges(ids: Sequence[int]) -> list[int]:
    """Write `ids` as start, count, start, count and so on.  In the steady state that is one range or a few.

    >>> to_ranges([4, 5, 6, 9])
    [4, 3, 9, 1]
    """
    ranges: list[int] = []
    following = -1
    for number in ids:
        if number == following:
            ranges[-1] += 1
        else:
            ranges += (number, 1)
        following = number + 1
    return ranges


def from_ranges(ranges: Sequence[int]) -> list[int]:
    """The ids that `to_ranges` wrote.

    >>> from_ranges([4, 3, 9, 1])
    [4, 5, 6, 9]
    """
    if len(ranges) == 2:  # noqa: PLR2004  by far the most frequent case
        return list(range(ranges[0], ranges[0] + ranges[1]))
    return [number for start, count in pairs(ranges) for number in range(start, start + count)]


def to_runs(times_ns: Iterable[int]) -> list[int]:
    """Write times as count, time, count, time and so on.  Gradients of a bucket are submitted at one time, which is one run.

    >>> to_runs([7, 7, 7, 9])
    [3, 7, 1, 9]
    """
    return [number for at_ns, same in groupby(times_ns) for number in (len(list(same)), at_ns)]


def pairs(ranges: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and count of each range; count and time of each run."""
    return zip(ranges[::2], ranges[1::2], strict=True)


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(Message).decode
