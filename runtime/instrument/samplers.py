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
from ...timeline.vocabulary import GPU_CLOCK, GPU_LOST, GPU_THROTTLED, HOST_CORES, HOST_CPU, PROCESS_CPU
from . import own_device
from .own_device import InUse

_log = logging.getLogger("tlkit.instrument")

Sample = tuple[str, float]
Source = Callable[[float], Iterator[Sample]]
"""Given the seconds since the last sample, yields names and values."""

#: Reasons for which a device runs slower than it should: power brake, hardware slow-down, thermal limits (nvml.h,
#: nvmlClocksEventReason*).  Not the power cap, 0x4, at which every busy device runs.
THROTTLE_MASK: Final = 0x80 | 0x8 | 0x40 | 0x20
_NETWORK: Final = (("bytes_sent", "network sent bytes/s"), ("bytes_recv", "network received bytes/s"))
_DISK: Final = (("read_bytes", "disk read bytes/s"), ("write_bytes", "disk written bytes/s"))


class Sampler:
    """A thread that samples until it is stopped."""

    def __init__(
        self, interval_s: float, *, local_rank: int, device: Callable[[], InUse | None] = own_device.in_use
    ) -> None:
        """Prepare; `start` begins.

        Args:
            interval_s: between samples.
            local_rank: rank on this host; the first samples the host as well.
            device: tells which device this rank uses; None as long as it uses none.
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
            for source in (_process(), _host() if self._local_rank == 0 else None, _when_in_use(self._device))
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


def _when_in_use(device: Callable[[], InUse | None]) -> Source:
    """Samples the device, once there is one."""
    source: Source | None = None
    asked = False

    def sample(elapsed_s: float) -> Iterator[Sample]:
        nonlocal source, asked
        if not asked and (found := device()) is not None:
            asked = True
            source = open_device(found)
        if source is not None:
            yield from source(elapsed_s)

    return sample


def open_device(device: InUse) -> Source | None:
    """What the management library tells of a device; None if there is no library, or no such device."""
    try:
        import pynvml  # noqa: PLC0415  optional

        pynvml.nvmlInit()
        handle = _handle(pynvml, device)
    except Exception:
        return None
    return _Readings(pynvml, handle).sample


def _handle(pynvml: Any, device: InUse) -> Any:
    """By UUID, which is the same whatever order CUDA and the library count in; else by number."""
    for prefix in ("GPU-", "MIG-") if device.uuid else ():
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(prefix + device.uuid.removeprefix(prefix))
        except Exception:
            _log.debug("there is no device %s%s", prefix, device.uuid)
    return pynvml.nvmlDeviceGetHandleByIndex(device.index)


class _Readings:
    """Counters of one device."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        reasons = (
            getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
            or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        self._error: Any = pynvml.NVMLError
        # Errors that stay: what this device, this library, or this user has not.  Others pass.
        self._not_here = {
            getattr(pynvml, name, None)
            for name in ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_NO_PERMISSION")
        } - {None}
        self._lost_code = getattr(pynvml, "NVML_ERROR_GPU_IS_LOST", None)
        self._is_lost = False
        self._read: dict[str, Callable[[], float]] = {
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

    def sample(self, _: float) -> Iterator[Sample]:
        """What can be read now."""
        for name, read in list(self._read.items()):
            try:
                value = float(read())
            except self._error as error:
                code = getattr(error, "value", None)
                if code in self._not_here:
                    del self._read[name]
                elif code is not None and code == self._lost_code and not self._is_lost:
                    self._is_lost = True
                    _log.error("the GPU of this rank is lost: it has fallen off the bus (look at dmesg for Xid)")
                    yield GPU_LOST, 1.0
                continue
            yield name, value
