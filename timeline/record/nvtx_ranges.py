"""The same spans as NVTX ranges, so that Nsight Systems shows them under our names.

Ranges live in the domain `tlkit`.  Attributes are built once a thread and name and reused with only the payload changed,
which is the cheapest pattern that Python has (a push and pop pair costs about 50 ns under an empty tool).  Without a tool
attached, or with HOROVOD_DISABLE_NVTX_RANGES=1, nothing is installed and a span pays nothing for this module.

Messages are static names: a name that contains a step or a size would be registered with the tool for ever.  Numbers
travel in the payload.
"""

import importlib
import os
import threading
from typing import Any, Final

from ..palette import argb
from ..vocabulary import Category

DOMAIN_NAME: Final = "tlkit"


def _is_disabled_by_environment() -> bool:
    return os.environ.get("HOROVOD_DISABLE_NVTX_RANGES", "0").strip().lower() not in {
        "",
        "0",
        "false",
        "no",
        "off",
    }


CAPTURE: Final = "capture"
"""A range that is open during the steps that a tool is asked to capture."""


class NvtxRanges:
    """Push and pop ranges of our domain; one instance a process.

    Not every method call needs a lock: NVTX keeps a stack of ranges a thread, and attributes are cached a thread.
    """

    def __init__(self, domain: Any) -> None:
        """Use `domain`, a `nvtx` Domain that a tool listens to."""
        self._domain = domain
        self._cache = threading.local()
        self._pop = domain.pop_range
        self._push = domain.push_range
        self._started: set[Any] = set()

    def _attributes(self, category: Category, name: str, payload: int | None) -> Any:
        try:
            by_name = self._cache.by_name
        except AttributeError:
            by_name = self._cache.by_name = {}
        # A range without a number carries none, rather than a 0 that looks like one.
        key = name if payload is None else (name,)
        attributes = by_name.get(key)
        if attributes is None:
            attributes = by_name[key] = self._domain.get_event_attributes(
                message=name, color=argb(category), category=str(category), payload=payload
            )
        if payload is not None:
            attributes.payload = payload
        return attributes

    def push(self, category: Category, name: str, payload: int | None = None) -> None:
        """Open a range on this thread.  `payload`: bytes, step or worker, whatever number the span has."""
        self._push(self._attributes(category, name, payload))

    def pop(self) -> None:
        """Close the innermost range of this thread."""
        self._pop()

    def start(self, category: Category, name: str, payload: int | None = None) -> Any:
        """Open a range that may overlap others and may end on another thread; returns what `stop` takes."""
        handle = self._domain.start_range(self._attributes(category, name, payload))
        self._started.add(handle)
        return handle

    def stop(self, handle: Any) -> None:
        """Close a range opened by `start`; nothing to do if `close` has."""
        try:
            self._started.remove(handle)
        except KeyError:
            return
        self._domain.end_range(handle)

    def close(self) -> None:
        """Close what `start` has opened: a tool would have it last until the process ends."""
        for handle in tuple(self._started):
            self.stop(handle)


def _new_domain(nvtx: Any) -> Any:
    """Our domain, made without asking the tool whether it wants one.

    Since nvtx 0.2.12 `get_domain` asks the tool through NVTX's payload extension whether the domain is enabled.  Nsight
    Systems 2022 and 2023 do not know that question, so it answers with a `DummyDomain` and every range vanishes silently.
    A tool that was injected into this process wants the ranges, so build the domain without asking.
    """
    lib = nvtx._lib.lib  # noqa: SLF001  there is no public way past the gate
    handle = lib.DomainHandle(DOMAIN_NAME)
    domain = object.__new__(lib.Domain)
    domain.handle = handle
    domain.__init__(DOMAIN_NAME)
    return domain


def open_nvtx(*, forked: bool = False) -> NvtxRanges | None:
    """Ranges if a tool is attached and NVTX is not disabled, else None.

    Args:
        forked: whether this process may have been forked from one that has ranges: the tool knows nothing here of names that
            it was told there, so they are said again.
    """
    if _is_disabled_by_environment():
        return None
    try:
        nvtx: Any = importlib.import_module("nvtx")
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN_NAME)
    is_dummy = type(domain).__name__ == "DummyDomain"
    if is_dummy and not os.environ.get("NVTX_INJECTION64_PATH"):
        return None
    return NvtxRanges(_new_domain(nvtx) if is_dummy or forked else domain)
