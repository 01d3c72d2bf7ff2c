"""Functions that a framework compiles or traces, which a training does once: again, if it hands over another shape or number."""

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import torch

from ...timeline.record import recorder
from ...timeline.vocabulary import COMPILATION, Category, LaneKind
from .patching import Patches

#: What takes less costs nothing that anybody would notice.
MIN_NS: Final = 1_000_000
#: Of JAX's measurements those that begin so are parts of making a program.
_OF_COMPILING: Final = "/jax/core/compile/"

_log = logging.getLogger("tlkit.instrument")
_patches = Patches()


class _Heard:
    """Who tells already what it compiles."""

    dynamo = False
    jax = False


def install() -> None:
    """Record what TorchDynamo compiles, as soon as the script has it: it takes a second to load."""
    if "torch._dynamo" in sys.modules:
        _listen_to_dynamo()
        return
    original = torch.compile

    @wraps(original)
    def recorded_compile(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if "torch._dynamo" in sys.modules:
            try:
                _listen_to_dynamo()
            except Exception:  # the training compiles whatever happens to our records
                _log.warning("what this torch compiles cannot be recorded", exc_info=True)
        return made

    _patches.replace(torch, "compile", recorded_compile)


def uninstall() -> None:
    """Put back what was there."""
    _patches.restore()
    _Heard.dynamo = False


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

    if not _Heard.jax:
        _Heard.jax = True
        jax.monitoring.register_event_duration_secs_listener(_measured)


def _measured(event: str, duration_s: float, **_: Any) -> None:
    if event.startswith(_OF_COMPILING):
        end_ns = recorder.now_ns()
        compiled(end_ns - int(duration_s * 1e9), end_ns, event.removeprefix(_OF_COMPILING).removesuffix("_duration"))


def _listen_to_dynamo() -> None:
    if _Heard.dynamo:
        return
    _Heard.dynamo = True
    from torch._dynamo.callback import CompilationCallbackHandler  # noqa: PLC0415  loaded by the script

    original = CompilationCallbackHandler.install_callbacks

    @contextmanager
    def recorded(*args: Any, **kwargs: Any) -> Generator[None, Any, Any]:
        # Which arguments there are depends on the version; the last one is the number by which torch's own logs name it.
        start_ns = recorder.now_ns()
        with original(*args, **kwargs):
            try:
                yield
            finally:
                if recorder.is_training_thread():
                    number = next(
                        (f" [{one}]" for one in (*kwargs.values(), *reversed(args)) if isinstance(one, str)), ""
                    )
                    compiled(start_ns, recorder.now_ns(), f"torch.compile{number}")

    _patches.replace(CompilationCallbackHandler, "install_callbacks", recorded)
