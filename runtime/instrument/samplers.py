"""Counters on the timeline: what the device, the process and the host do, once a second.

Devices are asked through NVML (nvml.py) or amdsmi (amd.py), torch about its memory (allocator.py), processes and hosts through
psutil.  Whatever is not there, a library, a driver, a device, a counter, is left out: a training does not need gauges.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...timeline.record import recorder
from ...timeline.vocabulary import HOST_CORES, HOST_CPU, PROCESS_CPU
from . import allocator, amd, nvml, own_device, pipelines
from .code.training import CodeSampler
from .own_device import InUse
from .sources import CounterSource, Sample

_log = logging.getLogger("tlkit.instrument")

_NETWORK: Final = (("bytes_sent", "network sent bytes/s"), ("bytes_recv", "network received bytes/s"))
_DISK: Final = (("read_bytes", "disk read bytes/s"), ("write_bytes", "disk written bytes/s"))


class Sampler:
    """A thread that samples until it is stopped."""

    def __init__(
        self,
        interval_s: float,
        *,
        local_rank: int,
        device: Callable[[], InUse | None] = own_device.in_use,
        only_load: bool = False,
    ) -> None:
        """Prepare; `start` begins.

        Args:
            interval_s: between samples.
            local_rank: rank on this host; the first samples the host as well.
            device: tells which device this rank uses; None as long as it uses none.
            only_load: sample how busy the host is, and nothing else: where only sums of steps are recorded, no more is kept.
        """
        self._interval_s = interval_s
        self._only_load = only_load
        self._local_rank, self._device = local_rank, device
        self._stopping = threading.Event()
        self._code = None if only_load else CodeSampler()
        self._thread = threading.Thread(target=self._run, name="tlkit-sampler", daemon=True)

    def start(self) -> None:
        """Sample from now on."""
        self._thread.start()
        if self._code is not None:
            self._code.start()

    def stop(self) -> None:
        """Stop; the thread has ended afterwards."""
        self._stopping.set()
        if self._code is not None:
            self._code.stop()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        sources = [source for source in self._sources() if source]
        last_ns = recorder.now_ns()
        while sources and not self._stopping.wait(self._interval_s):
            now_ns = recorder.now_ns()
            elapsed_s = max((now_ns - last_ns) / 1e9, 1e-3)
            last_ns = now_ns
            for source in list(sources):
                try:
                    for name, value in source(elapsed_s):
                        recorder.counter(name, value, now_ns)
                except Exception:  # whatever a library does, the training goes on
                    _log.debug("a source of counters fails and is disabled", exc_info=True)
                    sources.remove(source)

    def _sources(self) -> list[CounterSource | None]:
        is_first = self._local_rank == 0
        if self._only_load:
            return [_load() if is_first else None]
        return [_process(), _host() if is_first else None, _when_in_use(self._device), pipelines.sample]


def _load() -> CounterSource | None:
    """How busy the host is."""
    try:
        import psutil  # noqa: PLC0415  optional

        psutil.cpu_percent()
    except Exception:
        return None

    def sample(_: float) -> Iterator[Sample]:
        yield HOST_CPU, psutil.cpu_percent()
        yield HOST_CORES, psutil.cpu_count() or 1

    return sample


def _process() -> CounterSource | None:
    try:
        import psutil  # noqa: PLC0415  optional

        process = psutil.Process(os.getpid())
        process.cpu_percent()
    except Exception:
        return None

    def sample(_: float) -> Iterator[Sample]:
        yield PROCESS_CPU, process.cpu_percent()
        yield "process memory bytes", process.memory_info().rss

    return sample


def _host() -> CounterSource | None:
    try:
        import psutil  # noqa: PLC0415  optional

        psutil.cpu_percent()
        before: dict[str, Any] = {"net": psutil.net_io_counters(), "disk": psutil.disk_io_counters()}
    except Exception:
        return None

    def sample(elapsed_s: float) -> Iterator[Sample]:
        yield HOST_CPU, psutil.cpu_percent()
        yield HOST_CORES, psutil.cpu_count() or 1
        yield "host memory used bytes", psutil.virtual_memory().used
        for key, now, fields in (
            ("net", psutil.net_io_counters(), _NETWORK),
            ("disk", psutil.disk_io_counters(), _DISK),
        ):
            if now is not None and before[key] is not None:
                for attribute, name in fields:
                    yield name, max(getattr(now, attribute) - getattr(before[key], attribute), 0) / elapsed_s
            before[key] = now

    return sample


def _when_in_use(device: Callable[[], InUse | None]) -> CounterSource:
    """Samples the device, once there is one."""
    source: CounterSource | None = None
    asked = False

    def sample(elapsed_s: float) -> Iterator[Sample]:
        nonlocal source, asked
        if not asked and (found := device()) is not None:
            asked = True
            source = open_device(found)
        if source is not None:
            yield from source(elapsed_s)

    return sample


def open_device(device: InUse) -> CounterSource | None:
    """What is told of a device by its management library, and of its memory by torch; None if neither says anything."""
    of_library = nvml.open_device(device) or amd.open_device(device)
    of_torch = allocator.open_device(device)
    sources = [source for source in (of_library, of_torch) if source is not None]

    def sample(elapsed_s: float) -> Iterator[Sample]:
        for source in sources:
            yield from source(elapsed_s)

    return sample if sources else None
