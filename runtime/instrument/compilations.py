"""Functions that a framework compiles or traces, which a training does once: again, if it hands over another shape or number."""

from typing import Any, Final

from ...timeline.record import recorder
from ...timeline.vocabulary import COMPILATION, Category, LaneKind

#: What takes less costs nothing that anybody would notice.
MIN_NS: Final = 1_000_000
#: Of JAX's measurements those that begin so are parts of making a program.
_OF_COMPILING: Final = "/jax/core/compile/"


class _Listener:
    is_there = False


def compiled(start_ns: int, end_ns: int, function: str) -> None:
    """Something was compiled or traced.

    Args:
        start_ns: by the recorder's clock.
        end_ns: as well.
        function: its name, or what was done.
    """
    if recorder.is_timeline_on() and end_ns - start_ns >= MIN_NS:
        recorder.complete(LaneKind.OTHER, Category.OTHER, COMPILATION, start_ns, end_ns, {"function": function[:80]})


def listen_to_jax() -> None:
    """Record what JAX compiles; once for the life of the process, since listeners cannot be taken back."""
    import jax  # noqa: PLC0415  only who has it comes here

    if not _Listener.is_there:
        _Listener.is_there = True
        jax.monitoring.register_event_duration_secs_listener(_measured)


def _measured(event: str, duration_s: float, **_: Any) -> None:
    if event.startswith(_OF_COMPILING):
        end_ns = recorder.now_ns()
        compiled(end_ns - int(duration_s * 1e9), end_ns, event.removeprefix(_OF_COMPILING).removesuffix("_duration"))
