"""What ranks and the coordinator say to each other, once and for both sides.

Every message is a MessagePack array that starts with its tag, preceded on the wire by its length (`channel.py`).  In the
steady state a tensor is one small integer in either direction: the id that the coordinator gave to the request when it
first saw it.
"""

from typing import Final

import msgspec

#: A message longer than this is refused: nobody sends one, and a stray client must not make us allocate.
MAX_MESSAGE_NBYTES: Final = 256 * 1024 * 1024


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One rank asks for a collective on one tensor.  Equal requests are the same work again."""

    name: str
    """Full name, kind included: `allreduce.fc.weight`."""
    kind: str
    dtype: str
    shape: tuple[int, ...]
    op: int = 1
    """A ReduceOp; SUM where the kind has none."""
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    """Global rank, for broadcast."""
    process_set: int = 0
    device: str = "cpu"


class Hello(msgspec.Struct, tag="hello", array_like=True):
    """First message of a rank."""

    token: str
    rank: int
    host: str
    boot_id: str
    local_rank: int | None


class Welcome(msgspec.Struct, tag="welcome", array_like=True):
    """Answer to all ranks once all are there."""

    run_id: str
    hosts: list[str]
    local_ranks: list[int | None]
    origin_ns: int
    """Rank 0's monotonic clock at time 0 of the run."""
    origin_unix_ns: int


class ClockPing(msgspec.Struct, tag="ping", array_like=True):
    """A rank asks the coordinator what time it is."""

    sent_ns: int


class ClockPong(msgspec.Struct, tag="pong", array_like=True):
    """The coordinator's clock when it answered."""

    sent_ns: int
    coordinator_ns: int


class ClockOffset(msgspec.Struct, tag="clock", array_like=True):
    """A rank tells the coordinator how its clock relates, so that arrivals can be compared."""

    offset_ns: int


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """Tensors that a rank has submitted since it last said so, with the times on its own clock."""

    fresh: list[Request]
    fresh_ns: list[int]
    known: list[int]
    """Ids of requests that the coordinator has seen from this rank before."""
    known_ns: list[int]


class Resend(msgspec.Struct, tag="resend", array_like=True):
    """The coordinator has forgotten these ids: the rank shall ask in full."""

    ids: list[int]


class Response(msgspec.Struct, array_like=True):
    """One collective to execute, or an error to report."""

    seq: int
    process_set: int
    ids: list[int]
    """Id of each tensor, in buffer order."""
    names: list[str]
    """Name of each tensor; empty when every rank has seen all ids."""
    error: str = ""
    sizes: list[list[int]] = []
    """For allgather: first dimension by tensor and rank."""
    arrivals_ns: list[int] = []
    """Rank 0 only: when each rank had asked for the last of the tensors, on rank 0's clock."""


class Work(msgspec.Struct, tag="work", array_like=True):
    """Responses in the order in which every rank executes them."""

    responses: list[Response]
    forgotten: list[int] = []
    """Ids that are no longer valid."""


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """A rank could not execute a collective and cannot go on."""

    reason: str


class Abort(msgspec.Struct, tag="abort", array_like=True):
    """The job is over for everybody, and why."""

    reason: str


class Goodbye(msgspec.Struct, tag="goodbye", array_like=True):
    """A rank shuts down (to the coordinator), or all do (from it)."""

    reason: str = ""


class Drained(msgspec.Struct, tag="drained", array_like=True):
    """A rank has executed all it was told to; from the coordinator: all have."""


Message = (
    Hello | Welcome | ClockPing | ClockPong | ClockOffset | Ready | Resend | Work | Failed | Abort | Goodbye | Drained
)

encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(Message).decode
