"""The Horovod-compatible, instrumented runtime."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .launch.programmatic import run as run
else:

    def __getattr__(name: str) -> object:
        """`run`, imported at its first use, so that ranks do not load the launcher."""
        if name != "run":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .launch.programmatic import run  # noqa: PLC0415

        return run
