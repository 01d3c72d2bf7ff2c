"""tlkit: where the step time of distributed training goes, why, and what change gains how much.

The four parts live in folders of their own at the root of the repository and install below this name: `tlkit.timeline`
(the format and the tables), `tlkit.runtime` (the Horovod-compatible runtime that records), `tlkit.collector` (diagnosis)
and `tlkit.dashboard`.

`tlkit.instrument()` records training that does not use `hvd`; `tlkit.trace_handler()` adds the trace of torch.profiler to the
timeline of its run.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .runtime.instrument.profiling import trace_handler as trace_handler
    from .runtime.instrument.standalone import instrument as instrument
else:

    def __getattr__(name: str) -> object:
        """Functions that need torch, imported at their first use."""
        if name == "instrument":
            from .runtime.instrument.standalone import instrument  # noqa: PLC0415

            return instrument
        if name == "trace_handler":
            from .runtime.instrument.profiling import trace_handler  # noqa: PLC0415

            return trace_handler
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
