"""Do the ranks ask for the same thing?  The checks of Horovod's coordinator, in its order, in its words.

Each message keeps Horovod's sentence, which scripts and tests match on, and adds what it never said: which tensor, and
which ranks disagree.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..kinds import Kind
from ..operations import ReduceOp
from .messages import Request

T = TypeVar("T")

Requests = Mapping[int, Request]
"""By rank, in any order."""


def find_disagreement(requests: Requests) -> str:
    """What is wrong with `requests`, which all name the same tensor; "" if nothing is."""
    message = _first_objection(requests)
    # The same fault reads the same, whoever asked first; sorting is not worth its while before something is wrong.
    return message and _first_objection(dict(sorted(requests.items())))


def _first_objection(requests: Requests) -> str:
    first = next(iter(requests.values()))
    for check in _CHECKS:
        message = check(first, requests)
        if message:
            return message
    return ""


def _differing(requests: Requests, of: Callable[[Request], T]) -> tuple[T, T] | None:
    """The values of the first rank and of the first rank that differs from it."""
    values = [of(request) for request in requests.values()]
    for value in values[1:]:
        if value != values[0]:
            return values[0], value
    return None


def _who(requests: Requests, of: Callable[[Request], object]) -> str:
    """Which ranks say what: ` [allreduce.x: float32 on ranks 0, 2; int32 on rank 1]`."""
    by_value: dict[str, list[int]] = {}
    for rank, request in sorted(requests.items()):
        by_value.setdefault(str(of(request)), []).append(rank)
    parts = []
    for value, ranks in by_value.items():
        noun = "rank" if len(ranks) == 1 else "ranks"
        parts.append(f"{value} on {noun} {', '.join(map(str, ranks))}")
    name = next(iter(requests.values())).name
    return f" [{name}: {'; '.join(parts)}]"


def _shape(request: Request) -> str:
    return "[" + ", ".join(map(str, request.shape if request.unpadded is None else request.unpadded)) + "]"


def _dtype(_: Request, requests: Requests) -> str:
    pair = _differing(requests, lambda request: request.dtype)
    if pair is None:
        return ""
    return f"Mismatched data types: One rank had type {pair[0]}, but another rank had type {pair[1]}." + _who(
        requests, lambda request: request.dtype
    )


def _kind(_: Request, requests: Requests) -> str:
    def kind(request: Request) -> str:
        return "ADASUM" if request.op == ReduceOp.ADASUM else request.kind.span

    pair = _differing(requests, kind)
    if pair is None:
        return ""
    return f"Mismatched operations: One rank did an {pair[0]}, but another rank did an {pair[1]}." + _who(
        requests, kind
    )


def _full_shape(first: Request, requests: Requests) -> str:
    if first.kind.changes_ranks:
        if _differing(requests, _shape) is None:
            return ""
        return f"Mismatched process sets: the ranks want to {first.kind.partition('_')[0]} different ones." + _who(
            requests, _shape
        )
    pair = _differing(requests, _shape) if first.kind.same_shape else None
    if pair is None:
        return ""
    return (
        f"Mismatched {first.kind.span} tensor shapes: One rank sent a tensor of shape {pair[0]}, "
        f"but another rank sent a tensor of shape {pair[1]}." + _who(requests, _shape)
    )


def _scales(first: Request, requests: Requests) -> str:
    def factors(request: Request) -> str:
        return f"({request.prescale:g}, {request.postscale:g})"

    pair = _differing(requests, factors) if first.kind.reduces else None
    if pair is None:
        return ""
    return (
        f"Mismatched prescale and/or postscale factors: One rank sent factors {pair[0]}, "
        f"but another rank sent factors {pair[1]}." + _who(requests, factors)
    )


def _reduce_op(first: Request, requests: Requests) -> str:
    pair = _differing(requests, lambda request: request.op) if first.kind.reduces else None
    if pair is None:
        return ""
    return (
        f"Mismatched reduction operation: One rank sent reduction op {pair[0]}, "
        f"but another rank sent reduction op {pair[1]}."
        + _who(requests, lambda request: ReduceOp(request.op).name.lower())
    )


def _dimensions(first: Request, requests: Requests) -> str:
    if not first.kind.ragged and first.kind is not Kind.REDUCESCATTER:
        return ""
    kind = first.kind.span
    if any(not request.shape for request in requests.values()):
        return f"Process-set rank zero tried to {kind} a rank-zero tensor." + _who(requests, _shape)
    if not first.kind.ragged:
        return ""
    pair = _differing(requests, lambda request: len(request.shape))
    if pair is not None:
        return (
            f"Mismatched {kind} tensor shapes: One rank sent a tensor of rank {pair[0]}, "
            f"but another rank sent a tensor of rank {pair[1]}." + _who(requests, _shape)
        )
    for axis in range(1, len(first.shape)):
        pair = _differing(requests, lambda request, axis=axis: request.shape[axis])  # type: ignore[misc]
        if pair is not None:
            return (
                f"Mismatched {kind} tensor shapes: One rank sent a tensor with dimension {axis} equal to {pair[0]}, "
                f"but another rank sent a tensor with dimension {axis} equal to {pair[1]}." + _who(requests, _shape)
            )
    return ""


def _root(first: Request, requests: Requests) -> str:
    pair = _differing(requests, lambda request: request.root) if first.kind.rooted else None
    if pair is None:
        return ""
    return (
        f"Mismatched BROADCAST root ranks: One rank specified root rank {pair[0]}, "
        f"but another rank specified root rank {pair[1]}." + _who(requests, lambda request: f"root {request.root}")
    )


def _device(first: Request, requests: Requests) -> str:
    def device(request: Request) -> str:
        return "CPU" if request.device == "cpu" else "GPU"

    pair = _differing(requests, device)
    if pair is None:
        return ""
    return (
        f"Mismatched {first.kind.span} CPU/GPU device selection: One rank specified device {pair[0]}, "
        f"but another rank specified device {pair[1]}." + _who(requests, device)
    )


_CHECKS = (_dtype, _kind, _full_shape, _scales, _reduce_op, _dimensions, _root, _device)
