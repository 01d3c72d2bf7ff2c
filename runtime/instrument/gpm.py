"""What the multiprocessors, tensor cores, memory and links of a device are busy with: NVML's performance monitoring (GPM).

Hopper and later have it.  It compares two samples of the driver, which have to be 100 ms apart at least; here that is the time
between two samples of ours.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

from ...timeline.vocabulary import GPU_SM
from .sources import Sample

_MIN_INTERVAL_S: Final = 0.1
_BYTES_PER_MIB: Final = 1024.0 * 1024.0

#: Counter, what NVML calls it (nvmlGpmMetricId_t), and what its value is multiplied by.
_METRICS: Final = (
    (GPU_SM, "NVML_GPM_METRIC_SM_UTIL", 1.0),
    ("gpu sm occupancy %", "NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    ("gpu tensor activity %", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    ("gpu dram activity %", "NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    ("gpu pcie sent bytes/s", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", _BYTES_PER_MIB),
    ("gpu pcie received bytes/s", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", _BYTES_PER_MIB),
    ("gpu nvlink sent bytes/s", "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", _BYTES_PER_MIB),
    ("gpu nvlink received bytes/s", "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", _BYTES_PER_MIB),
)


def open_activity(pynvml: Any, handle: Any, whole: Any) -> "Activity | None":
    """The monitoring of a device; None if it has none.

    Args:
        handle: the device, or its slice.
        whole: the device that `handle` is a slice of; None if it is whole.
    """
    try:
        device = handle if whole is None else whole
        if not pynvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice:
            return None
        instance = None if whole is None else pynvml.nvmlDeviceGetGpuInstanceId(handle)
        return Activity(pynvml, device, instance)
    except (pynvml.NVMLError, AttributeError):  # an older driver, or an older library
        return None


class Activity:
    """Counters out of the difference between two samples."""

    knows_links = True

    def __init__(self, pynvml: Any, device: Any, instance: int | None) -> None:
        """Take the first sample.

        Args:
            instance: of the slice, None for the whole device.

        Raises:
            NVMLError: the device does not give any.
            AttributeError: the library does not know of it.
        """
        self._pynvml = pynvml
        self._device, self._instance = device, instance
        self._metrics = [
            (name, getattr(pynvml, metric), factor) for name, metric, factor in _METRICS if hasattr(pynvml, metric)
        ]
        self._before, self._after = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._take(self._before)
        self._taken_s = time.monotonic()

    def _take(self, sample: Any) -> None:
        if self._instance is None:
            self._pynvml.nvmlGpmSampleGet(self._device, sample)
        else:
            self._pynvml.nvmlGpmMigSampleGet(self._device, self._instance, sample)

    def sample(self) -> Iterator[Sample]:
        """What there was since the last time; nothing if that was just now.

        Raises:
            NVMLError: the device does not answer.
        """
        now_s = time.monotonic()
        if now_s - self._taken_s < _MIN_INTERVAL_S:
            return
        self._take(self._after)
        asked = self._pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(self._metrics)
        asked.sample1, asked.sample2 = self._before, self._after
        for place, (_, number, _) in enumerate(self._metrics):
            asked.metrics[place].metricId = number
        self._pynvml.nvmlGpmMetricsGet(asked)
        self._before, self._after, self._taken_s = self._after, self._before, now_s
        for place, (name, _, factor) in enumerate(self._metrics):
            if not asked.metrics[place].nvmlReturn:
                yield name, asked.metrics[place].value * factor
