"""The kinds of what ranks do together, and what is different about each."""

from enum import StrEnum, unique
from typing import NamedTuple, Self


class _Traits(NamedTuple):
    """What a kind is like; see the properties of `Kind`."""

    same_shape: bool = False
    ragged: bool = False
    reduces: bool = False
    fusible: bool = False
    rooted: bool = False
    numbered: bool = True
    recorded: bool = True
    changes_ranks: bool = False
    joinable: bool = False


@unique
class Kind(StrEnum):
    """A kind, which is its name wherever it is written down."""

    ALLREDUCE = "allreduce", _Traits(same_shape=True, reduces=True, fusible=True, joinable=True)
    ALLGATHER = "allgather", _Traits(ragged=True, fusible=True)
    BROADCAST = "broadcast", _Traits(same_shape=True, rooted=True)
    ALLTOALL = "alltoall", _Traits(ragged=True)
    REDUCESCATTER = "reducescatter", _Traits(same_shape=True, reduces=True, fusible=True)
    BARRIER = "barrier", _Traits(numbered=False, joinable=True)
    JOIN = "join", _Traits(numbered=False, recorded=False, changes_ranks=True)
    ADD_PROCESS_SET = "add_process_set", _Traits(numbered=False, recorded=False, changes_ranks=True)
    REMOVE_PROCESS_SET = "remove_process_set", _Traits(numbered=False, recorded=False, changes_ranks=True)

    same_shape: bool
    """The ranks have to agree on the shape."""
    ragged: bool
    """They may differ in the first dimension, which there has to be."""
    reduces: bool
    """They have to agree on the operation and on the factors."""
    fusible: bool
    """Several tensors may share a buffer."""
    rooted: bool
    """They have to agree on a root."""
    numbered: bool
    """A tensor that was negotiated once is asked for by number."""
    recorded: bool
    """It has a span, and a size in bytes."""
    changes_ranks: bool
    """It changes who takes part in what: nothing that a rank submits later may be handled before it, nor it before what the
    rank has submitted earlier."""
    joinable: bool
    """It may be done while some rank has joined."""
    span: str
    """How Horovod calls it in a timeline, and so do ranges of NVTX."""

    def __new__(cls, value: str, traits: _Traits = _Traits()) -> Self:  # noqa: B008  it does not change
        """Make a member out of its line above."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.span = value.upper()
        for name, trait in traits._asdict().items():
            setattr(kind, name, trait)
        return kind
