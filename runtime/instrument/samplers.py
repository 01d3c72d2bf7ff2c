"""Counters on the timeline: what the device, the process and the host do, once a second.

Devices are asked through NVML (`nvidia-ml-py`), processes and hosts through psutil.  Whatever is not there, a library, a driver,
a device, a counter, is left out without a word: a training must not fail, or be told off, for lack of a gauge.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...timeline import recorder
from ...timeline.vocabulary import GPU_CLOCK, GPU_THROTTLED, HOST_CORES, HOST_CPU, PROCESS_CPU

_log = logging.getLogger("tlkit.instrument")

Sample = tuple[str, float]
Source = Callable[[float], Iterator[Sample]]
"""Given the seconds since the last sample, yields names and values."""

#: Reasons for which a device runs slower than it could: power brake, hardware slow-down, thermal limits, power cap
#: (nvml.h, nvmlClocksEventReason*).
THROTTLE_MASK: Final = 0x80 | 0x8 | 0x40 | 0x20 | 0x4
_NETWORK: Final = (("bytes_sent", "network sent bytes/s"), ("bytes_recv", "network received bytes/s"))
_DISK: Final = (("read_bytes", "disk read bytes/s"), ("write_bytes", "disk written bytes/s"))


class Sampler:
    """A thread that samples until it is stopped."""

    def __init__(self, interval_s: float, *, local_rank: int, device: int | None) -> None:
        """Prepare; `start` begins.

        Args:
            interval_s: between samples.
            local_rank: rank on this host; the first samples the host as well.
            device: index of the device that this rank uses; None for none.
        """
        self._interval_s = interval_s
        self._local_rank, self._device = local_rank, device
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tlkit-sampler", daemon=True)

    def start(self) -> None:
        """Sample from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; the thread has ended afterwards."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        sources = [
            source
            for source in (_process(), _host() if self._local_rank == 0 else None, _device(self._device))
            if source
        ]
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
                    _log.debug("a source of counters fails and is left out", exc_info=True)
                    sources.remove(source)


def _process() -> Source | None:
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


def _host() -> Source | None:
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


def _device(index: int | None) -> Source | None:
    if index is None:
        return None
    try:
        import pynvml  # noqa: PLC0415  optional

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:
        return None
    reasons = (
        getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )
    readings: dict[str, Callable[[], float]] = {
        "gpu utilisation %": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu memory used bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        "gpu power W": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        GPU_CLOCK: lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "gpu temperature C": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        GPU_THROTTLED: lambda: float(bool(reasons(handle) & THROTTLE_MASK)),
        "gpu pcie sent bytes/s": lambda: (
            1024.0 * pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
        ),
        "gpu pcie received bytes/s": lambda: (
            1024.0 * pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
        ),
    }

    def sample(_: float) -> Iterator[Sample]:
        for name, read in list(readings.items()):
            try:
                value = float(read())
            except pynvml.NVMLError:
                # This device does not have that; a device that falls off the bus has nothing any more.
                del readings[name]
                continue
            yield name, value

    return sample
