"""The Horovod-compatible, instrumented runtime."""

TYPE_CHECKING = False  # as in typing, which is not to be imported with every interpreter
if TYPE_CHECKING:
    from .launch.programmatic import run as run
else:

    def __getattr__(name: str) -> object:
        """`run`, imported when it is asked for: this module is loaded at the start of every interpreter."""
        if name != "run":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .launch.programmatic import run  # noqa: PLC0415

        return run
