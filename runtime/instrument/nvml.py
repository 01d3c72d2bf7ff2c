"""Counters of an NVIDIA device, through NVML (`nvidia-ml-py`).

On Hopper and later the driver counts what the multiprocessors do (gpm.py); elsewhere links are counted in bytes, of which the
difference is taken.  Of a slice of a device (MIG) most is known of the whole device alone, which is said once.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...timeline.vocabulary import GPU_CLOCK, GPU_ECC, GPU_LOST, GPU_REASON, GPU_THROTTLED, GPU_XID
from .gpm import Activity, open_activity
from .own_device import InUse
from .sources import CounterSource, Sample

_log = logging.getLogger("tlkit.instrument")

Reading = Callable[[], float]

#: Why a device runs slower than it could (nvml.h, nvmlClocksEventReason*).
REASONS: Final = {
    0x2: "its clock setting", 0x4: "its power cap", 0x8: "its hardware", 0x10: "sync boost", 0x20: "heat",
    0x40: "heat (hardware)", 0x80: "the power brake",
}  # fmt: skip
#: Those for which it runs slower than it should.  Not the power cap, at which every busy device runs.
THROTTLE_MASK: Final = 0x80 | 0x8 | 0x40 | 0x20
#: All links together, where a field asks for one.
_ALL_LINKS: Final = 0xFFFFFFFF
_BYTES_PER_KIB: Final = 1024.0
_PCIE_SENT, _PCIE_RECEIVED = "gpu pcie sent bytes/s", "gpu pcie received bytes/s"
#: No more reports of the driver are read at once.
_MAX_XIDS: Final = 100


def open_device(device: InUse) -> CounterSource | None:
    """What the management library tells of a device; None if there is no library, or no such device."""
    try:
        import pynvml  # noqa: PLC0415  optional

        pynvml.nvmlInit()
        handle = _handle(pynvml, device)
    except Exception:  # a library or driver that is not there
        return None
    return _Device(pynvml, handle).sample


def _handle(pynvml: Any, device: InUse) -> Any:
    """By UUID, which is the same whatever order CUDA and the library count in; else by number."""
    for prefix in ("GPU-", "MIG-") if device.uuid else ():
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(prefix + device.uuid.removeprefix(prefix))
        except Exception:
            _log.debug("there is no device %s%s", prefix, device.uuid)
    return pynvml.nvmlDeviceGetHandleByIndex(device.index)


def _whole_of(pynvml: Any, handle: Any) -> Any:
    """The device that a slice is of; None for one that is whole."""
    try:
        if pynvml.nvmlDeviceIsMigDeviceHandle(handle):
            return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except (pynvml.NVMLError, AttributeError) as error:  # a library from before there were slices
        _log.debug("no slices: %s", error)
    return None


class _Device:
    """Counters of one device."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._pynvml = pynvml
        self._error: Any = pynvml.NVMLError
        # Errors that stay: what this device, this library, or this user has not.  Others pass.
        self._not_here = {
            getattr(pynvml, name, None)
            for name in ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_NO_PERMISSION")
        } - {None}
        self._refused_code = getattr(pynvml, "NVML_ERROR_NO_PERMISSION", None)
        self._lost_code = getattr(pynvml, "NVML_ERROR_GPU_IS_LOST", None)
        self._is_lost = False
        self._has_refused = False
        self._seen: set[str] = set()
        """Reasons for a lower clock that there were."""
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        whole = _whole_of(pynvml, handle)
        if whole is not None:
            _log.info(
                "this rank computes on a slice of a GPU (MIG): clock, power, temperature and links on the timeline are of the "
                "whole GPU, and its utilisation is not known"
            )
        self._activity: Activity | None = open_activity(pynvml, handle, whole)
        self._whole = handle if whole is None else whole
        self._xids = _watch_errors(pynvml, self._whole)
        self._read = self._readings(handle, self._whole)
        self._rates = self._counted(self._whole)
        self._reasons = self._reader_of_reasons(self._whole)

    def _readings(self, handle: Any, whole: Any) -> dict[str, Reading]:
        nvml = self._pynvml
        return {
            "gpu utilisation %": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu memory utilisation %": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
            "gpu memory used bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu power W": lambda: nvml.nvmlDeviceGetPowerUsage(whole) / 1000,
            "gpu power limit W": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(whole) / 1000,
            "gpu energy J": lambda: self._since_first("energy", nvml.nvmlDeviceGetTotalEnergyConsumption(whole) / 1000),
            GPU_CLOCK: lambda: nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM),
            "gpu memory clock MHz": lambda: nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_MEM),
            "gpu temperature C": lambda: nvml.nvmlDeviceGetTemperature(whole, nvml.NVML_TEMPERATURE_GPU),
            "gpu memory temperature C": lambda: self._field(whole, nvml.NVML_FI_DEV_MEMORY_TEMP),
            "gpu corrected memory errors": lambda: self._since_first(
                "corrected",
                nvml.nvmlDeviceGetTotalEccErrors(whole, nvml.NVML_SINGLE_BIT_ECC, nvml.NVML_VOLATILE_ECC),
            ),
            GPU_ECC: lambda: self._since_first(
                "uncorrected",
                nvml.nvmlDeviceGetTotalEccErrors(whole, nvml.NVML_DOUBLE_BIT_ECC, nvml.NVML_VOLATILE_ECC),
            ),
            "gpu pcie replays": lambda: self._since_first("replays", nvml.nvmlDeviceGetPcieReplayCounter(whole)),
        }

    def _counted(self, whole: Any) -> dict[str, Reading]:
        """Bytes over links so far."""
        if self._activity is not None and self._activity.knows_links:
            return {}
        nvml = self._pynvml

        def links(name: str) -> Reading:
            return lambda: _BYTES_PER_KIB * self._field(whole, getattr(nvml, name), _ALL_LINKS)

        def bus(name: str) -> Reading:
            return lambda: self._field(whole, getattr(nvml, name))

        return {
            "gpu nvlink sent bytes/s": links("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
            "gpu nvlink received bytes/s": links("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
            _PCIE_SENT: bus("NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
            _PCIE_RECEIVED: bus("NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
        }

    def _reader_of_reasons(self, whole: Any) -> Callable[[], int] | None:
        nvml = self._pynvml
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            read = getattr(nvml, name, None)
            if read is not None:
                return lambda read=read: int(read(whole))  # type: ignore[misc]
        return None

    def _field(self, handle: Any, number: int, scope: int = 0) -> float:
        """One value of those that are asked for by number.

        Raises:
            NVMLError: the device does not have it.
        """
        nvml = self._pynvml
        (found,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])
        if found.nvmlReturn:
            raise nvml.NVMLError(found.nvmlReturn)
        kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        return float(getattr(found.value, kinds[found.valueType]))

    def _since_first(self, name: str, value: float) -> float:
        """How much a total of the driver has grown since the recording began."""
        return value - self._first.setdefault(name, value)

    def sample(self, elapsed_s: float) -> Iterator[Sample]:
        """What can be read now."""
        for name, read in list(self._read.items()):
            value = self._try(name, read)
            if value is not None:
                yield name, value
        yield from self._sample_rates(elapsed_s)
        yield from self._sample_reasons()
        if self._activity is not None:
            activity = self._activity
            try:
                yield from activity.sample()
            except self._error as error:
                if getattr(error, "value", None) in self._not_here:
                    self._activity = None
        for xid in self._xids():
            _log.error("the driver reports error %d of this rank's GPU (Xid; see NVIDIA's list, and dmesg)", xid)
            yield GPU_XID, float(xid)
        if self._is_lost and GPU_LOST not in self._seen:
            self._seen.add(GPU_LOST)
            _log.error("the GPU of this rank is lost: it has fallen off the bus (look at dmesg for Xid)")
            yield GPU_LOST, 1.0

    def _sample_rates(self, elapsed_s: float) -> Iterator[Sample]:
        for name, read in list(self._rates.items()):
            total = self._try(name, read)
            if total is None:
                continue
            before, self._last[name] = self._last.get(name), total
            if before is not None and total >= before:
                yield name, (total - before) / elapsed_s

    def _sample_reasons(self) -> Iterator[Sample]:
        if self._reasons is None:
            return
        reasons = self._try(GPU_THROTTLED, self._reasons)
        if reasons is None:
            return
        yield GPU_THROTTLED, float(bool(int(reasons) & THROTTLE_MASK))
        for bit, why in REASONS.items():
            if int(reasons) & bit or why in self._seen:
                self._seen.add(why)
                yield f"{GPU_REASON}{why}", float(bool(int(reasons) & bit))

    def _try(self, name: str, read: Callable[[], float]) -> float | None:
        """A reading, or None; one that will never be there is forgotten."""
        try:
            return float(read())
        except AttributeError:  # an older library
            self._forget(name)
        except self._error as error:
            code = getattr(error, "value", None)
            if code in self._not_here:
                self._forget(name)
            if code is not None and code == self._refused_code and not self._has_refused:
                self._has_refused = True
                _log.warning("NVML does not let this user read everything (%s): counters of the GPU are missing", name)
            if code is not None and code == self._lost_code:
                self._is_lost = True
        return None

    def _forget(self, name: str) -> None:
        if self._rates.pop(name, None) is not None and name in {_PCIE_SENT, _PCIE_RECEIVED}:
            # Older devices measure for a moment when they are asked.
            kind = "NVML_PCIE_UTIL_TX_BYTES" if name == _PCIE_SENT else "NVML_PCIE_UTIL_RX_BYTES"
            nvml, handle = self._pynvml, self._whole
            self._read[name] = lambda: _BYTES_PER_KIB * nvml.nvmlDeviceGetPcieThroughput(handle, getattr(nvml, kind))
            return
        self._read.pop(name, None)
        if name == GPU_THROTTLED:
            self._reasons = None


def _watch_errors(pynvml: Any, handle: Any) -> Callable[[], list[int]]:
    """Reads the driver's reports of errors of a device (Xid) since the last time."""
    try:
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    except (pynvml.NVMLError, AttributeError) as error:
        _log.debug("no reports of errors: %s", error)
        return list

    def read() -> list[int]:
        found: list[int] = []
        try:
            while len(found) < _MAX_XIDS:
                found.append(int(pynvml.nvmlEventSetWait_v2(events, 0).eventData))
        except pynvml.NVMLError:  # a timeout: there are no more
            pass
        return found

    return read
