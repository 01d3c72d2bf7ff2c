"""Messages between two ranks that a training sends through torch.distributed: pipelines do.

Gloo does not tell when a message has arrived that nobody waits for: it is recorded up to the end of the wait.  One that nobody
ever waits for is not recorded; it counts all the same, so that those after it keep their partners.
"""

import inspect
import logging
from collections.abc import Sequence
from functools import wraps
from typing import Any, Final

import torch
import torch.distributed as dist

from ...timeline.record import recorder
from ...timeline.vocabulary import RECV, SEND
from .collective_spans import Message, forget, here
from .patching import Patches
from .torch_collectives import remember

_log = logging.getLogger("tlkit.instrument")
_patches = Patches()

#: Functions of torch.distributed, with the direction and whether they wait.
_FUNCTIONS: Final = {"send": (SEND, True), "recv": (RECV, True), "isend": (SEND, False), "irecv": (RECV, False)}
_wrappers: Final[dict[Any, Any]] = {}
"""By what they stand in front of."""


class _Held:
    """Whether a `P2POp` of the script's holds a wrapper of ours, which must not become a stranger to torch then."""

    wrappers = False


def install() -> None:
    """Record messages."""
    if not dist.is_available() or _wrappers:
        return
    inside = dist.distributed_c10d
    if not all(hasattr(inside, name) for name in (*_FUNCTIONS, "P2POp", "_check_op", "batch_isend_irecv")):
        raise AttributeError("torch.distributed has functions for messages that this version of tlkit does not know")
    for name, (direction, waits) in _FUNCTIONS.items():
        original = getattr(inside, name)
        _wrappers[original] = _recorded(original, direction, waits=waits)
        # In both places, since torch compares what a P2POp holds with its own.
        for module in (dist, inside):
            if getattr(module, name) is original:
                _patches.replace(module, name, _wrappers[original])
    _patches.replace(inside, "_check_op", _lenient(vars(inside)["_check_op"]))
    _patches.replace(inside.P2POp, "__init__", _holding(inside.P2POp.__init__))
    batch = _recorded_batch(inside.batch_isend_irecv)
    for module in (dist, inside):
        _patches.replace(module, "batch_isend_irecv", batch)


def uninstall() -> None:
    """Put back what was there, unless the script keeps operations that hold it; it only hands on from now on."""
    forget()
    if not _Held.wrappers:
        _patches.restore()
        _wrappers.clear()


def _lenient(original: Any) -> Any:
    """The check of a P2POp's function, which may have been imported before the wrapper was there."""

    @wraps(original)
    def check(op: Any) -> Any:
        return original(_wrappers.get(op, op))

    return check


def _holding(original: Any) -> Any:
    """`P2POp.__init__`, with the wrapper in place of what it stands for."""

    @wraps(original)
    def init(self: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        original(self, _wrappers.get(op, op), *args, **kwargs)
        _Held.wrappers = True

    return init


def _recorded(original: Any, direction: str, *, waits: bool) -> Any:
    parameters = list(inspect.signature(original).parameters)

    @wraps(original)
    def recorded_message(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or here.inside or not recorder.is_on():
            return original(*args, **kwargs)
        message = _begin(direction, {**dict(zip(parameters, args, strict=False)), **kwargs})
        if message is None:
            return original(*args, **kwargs)
        with message.calling():
            result = original(*args, **kwargs)
        if waits:
            if isinstance(result, int) and result >= 0:  # who has sent
                message.of(result)
            message.finished()
        elif here.batch is not None:
            here.batch.append(message)
        elif result is not None:
            remember(result, (message,))
        return result

    return recorded_message


def _begin(direction: str, given: dict[str, Any]) -> Message | None:
    """A message that begins; None if it cannot be described, which is no reason not to send it."""
    try:
        group = given.get("group")
        if group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
            return None
        end = "dst" if direction == SEND else "src"
        peer, in_group = given.get(end), given.get(f"group_{end}")
        if peer is None and in_group is not None:
            peer = dist.get_global_rank(group or dist.distributed_c10d._get_default_group(), in_group)  # noqa: SLF001
        return Message(direction, given["tensor"], group, -1 if peer is None else int(peer), int(given.get("tag", 0)))
    except Exception:
        _log.debug("a message cannot be recorded", exc_info=True)
        return None


def _recorded_batch(original: Any) -> Any:
    """`batch_isend_irecv`, whose messages may end together."""

    @wraps(original)
    def batch_isend_irecv(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or here.inside or here.batch is not None or not recorder.is_on():
            return original(*args, **kwargs)
        messages: list[Message] = []
        here.batch = messages
        try:
            works = original(*args, **kwargs)
        finally:
            here.batch = None
        _pair(works, messages)
        return works

    return batch_isend_irecv


def _pair(works: Sequence[Any], messages: Sequence[Message]) -> None:
    """One work a message, or one for all of them, as NCCL has it."""
    if len(works) == len(messages):
        for work, message in zip(works, messages, strict=True):
            remember(work, (message,))
    elif works:
        remember(works[-1], messages)
