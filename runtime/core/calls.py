"""Who calls a collective: the runtime for gradients, a helper for parameters or objects, or a line of the user's.

Helpers say what they are about with `calling`.  What is left is a call of the user's, whose line is found by looking up the
stack: a tenth of a microsecond a frame, since it is remembered of every file whose it is.
"""

import os
import sys
import threading
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any, Final

from ...timeline.record import recorder
from ...timeline.record.shard_format import UNKNOWN_CALL, Call

GRADIENT: Final = Call("gradient", blocking=False)

#: Places in code, and files, that are remembered.
MAX_REMEMBERED: Final = 16384

_TOOLKIT: Final = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep  # noqa: PTH120  as code objects have it
_TORCH: Final = os.path.dirname(getattr(find_spec("torch"), "origin", None) or f"{os.sep}no torch{os.sep}") + os.sep  # noqa: PTH120

#: Libraries that call what the user has written, and are no user: the rest of `_TORCH`'s kind, by folder of the installation.
_SITE: Final = os.path.dirname(os.path.dirname(_TORCH)) + os.sep  # noqa: PTH120
_LIBRARIES: Final = tuple(
    f"{_SITE}{name}{os.sep}" for name in ("tensorflow", "keras", "tf_keras", "jax", "jaxlib", "optax")
)
#: What TensorFlow makes of the user's functions; it is called from them.
_GENERATED: Final = "__autograph_generated_file"

#: What code is about.  `user` is anything outside torch and the toolkit, "" code that only hands on.
_USER: Final = "user"
_OBJECT: Final = "object"
_UNKNOWN: Final = "unknown"
#: Sends parameters around, or gradients, by the kind of the collective.
_MODEL: Final = "model"
#: Folders and files of torch that call collectives on their own account.
_OF_TORCH: Final = (
    (f"nn{os.sep}modules{os.sep}_functions.py", "norm"),
    (f"nn{os.sep}parallel{os.sep}distributed.py", _MODEL),
    (f"distributed{os.sep}utils.py", _MODEL),
    (f"distributed{os.sep}fsdp{os.sep}", _MODEL),
    (f"distributed{os.sep}_composable{os.sep}", _MODEL),
    (f"distributed{os.sep}optim{os.sep}", _MODEL),
    (f"distributed{os.sep}algorithms{os.sep}model_averaging{os.sep}", "parameters"),
    (f"distributed{os.sep}algorithms{os.sep}", "gradient"),
    (f"distributed{os.sep}checkpoint{os.sep}", _OBJECT),
    # Tensor parallelism: activations and gradients alike, out of operators that the script never called.
    (f"distributed{os.sep}tensor{os.sep}", _UNKNOWN),
)


class _Here(threading.local):
    """What this thread is about."""

    call: Call | None = None


_here: Final = _Here()
_is_user: dict[str, bool] = {}
"""By file of code: whether it is the user's, which is neither torch's nor the toolkit's."""
_roles: dict[tuple[str, str], str] = {}
"""By file and function of code: what it is about."""
_calls: dict[tuple[int, int, str, bool], tuple[Call, CodeType | None]] = {}
"""By place in code (identity and offset, since a line's number takes long to find), caller, and whether it blocks.  The code
is kept alive, so that no other takes its place."""


class _Calling:
    """A context in which all collectives are of one call; the outermost counts."""

    __slots__ = ("_call", "_outer")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._outer: Call | None = None

    def __enter__(self) -> None:
        self._outer = _here.call
        if self._outer is None:
            _here.call = self._call

    def __exit__(self, *_: object) -> None:
        _here.call = self._outer


class _NotCalling:
    """The context that does nothing, while no timeline is written."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOT_CALLING: Final = _NotCalling()


def calling(caller: str, *, blocking: bool = True, located: bool = True) -> Any:
    """A context whose collectives are asked for by `caller`, unless a context around it says otherwise.

    Args:
        caller: one of vocabulary.CALLERS.
        blocking: whether the thread waits for them before it leaves the call.
        located: whether the user's line matters.
    """
    if not recorder.is_timeline_on():
        return _NOT_CALLING
    return _Calling(_from_line(caller, blocking=blocking) if located else _elsewhere(caller, blocking=blocking))


def handing_on(call: Call) -> Any:
    """A context whose collectives are of a call that was made before."""
    return _Calling(call) if recorder.is_timeline_on() else _NOT_CALLING


def current(*, blocking: bool, above: int = 0) -> Call:
    """The call that this thread is in: a helper's, else the user's.

    Args:
        blocking: whether the thread waits before it leaves a call of the user's.
        above: callers of the caller that are known to be the toolkit's; not to look at them saves a frame object each.
    """
    call = _here.call
    return _from_line(_USER, blocking=blocking, above=above) if call is None else call


def current_of_torch(kind: str, *, blocking: bool) -> Call:
    """The call of torch.distributed that this thread is in: of a library in torch, else the user's.

    Args:
        kind: of the collective.
        blocking: whether the thread waits before it leaves the call.
    """
    if _here.call is not None:
        return _here.call
    caller = ""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  what inspect does, without its cost
    while frame is not None:
        code = frame.f_code
        role = _roles.get((code.co_filename, code.co_name))
        if role is None:
            role = _look_at(code)
        if role == _USER:
            caller = caller or ("barrier" if kind == "barrier" else _USER)
            return _at(frame, caller, blocking=blocking)
        if role == _UNKNOWN:
            return UNKNOWN_CALL
        if role == _OBJECT:
            caller = role
        elif role and not caller:
            if role == _MODEL:
                role = "parameters" if kind in {"allgather", "broadcast"} else "gradient"
            return _elsewhere(role, blocking=blocking)
        frame = frame.f_back
    return _elsewhere(caller, blocking=blocking) if caller else UNKNOWN_CALL


def _from_line(caller: str, *, blocking: bool, above: int = 0) -> Call:
    """A call out of the innermost frame that is neither torch's nor the toolkit's."""
    frame: FrameType | None = sys._getframe(2 + above)  # noqa: SLF001
    while frame is not None:
        found = _is_user.get(frame.f_code.co_filename)
        if found is None:
            found = _look_at(frame.f_code) == _USER
        if found:
            return _at(frame, caller, blocking=blocking)
        frame = frame.f_back
    return _elsewhere(caller, blocking=blocking)  # a thread of C++, such as autograd's for a device


def _at(frame: FrameType, caller: str, *, blocking: bool) -> Call:
    code = frame.f_code
    key = (id(code), frame.f_lasti, caller, blocking)
    known = _calls.get(key)
    if known is None:
        where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119  of what may be no path
        known = _remember(key, Call(caller, blocking=blocking, where=where), code)
    return known[0]


def _elsewhere(caller: str, *, blocking: bool) -> Call:
    key = (0, 0, caller, blocking)
    known = _calls.get(key)
    if known is None:
        known = _remember(key, Call(caller, blocking=blocking), None)
    return known[0]


def _remember(key: tuple[int, int, str, bool], call: Call, code: CodeType | None) -> tuple[Call, CodeType | None]:
    if len(_calls) >= MAX_REMEMBERED:
        _calls.clear()
    _calls[key] = known = (call, code)
    return known


def _look_at(code: CodeType) -> str:
    """What code is about, remembered for the next time."""
    if len(_roles) >= MAX_REMEMBERED:
        _roles.clear()
        _is_user.clear()
    role = _roles[code.co_filename, code.co_name] = _role_of(code)
    _is_user[code.co_filename] = role == _USER
    return role


def _role_of(code: CodeType) -> str:
    path = code.co_filename
    if path.startswith((_TOOLKIT, "<frozen ", *_LIBRARIES)) or _GENERATED in path:
        return ""
    if not path.startswith(_TORCH):
        return _USER
    inside = path.removeprefix(_TORCH)
    if inside.endswith("distributed_c10d.py"):
        return _OBJECT if "object" in code.co_name else ""
    return next((role for start, role in _OF_TORCH if inside.startswith(start)), "")
