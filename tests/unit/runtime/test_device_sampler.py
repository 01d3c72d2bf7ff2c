"""Which device is sampled, and what is done about a library that answers with errors."""

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tlkit.runtime.instrument import own_device, samplers
from tlkit.runtime.instrument.own_device import InUse


class NVMLError(Exception):
    """As pynvml's, with a number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Library:
    """A double of pynvml; a reading that is named in `failing` raises the error of that number."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST = 3, 10, 15
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 1, 0, 0, 1

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.reasons = 0
        self.asked_for: list[Any] = []
        answers: dict[str, Callable[[], Any]] = {
            "nvmlDeviceGetUtilizationRates": lambda: types.SimpleNamespace(gpu=99),
            "nvmlDeviceGetMemoryInfo": lambda: types.SimpleNamespace(used=1 << 34),
            "nvmlDeviceGetPowerUsage": lambda: 350_000,
            "nvmlDeviceGetClockInfo": lambda: 1755,
            "nvmlDeviceGetTemperature": lambda: 61,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: self.reasons,
            "nvmlDeviceGetPcieThroughput": lambda: 1000,
        }
        for name, answer in answers.items():
            setattr(self, name, self._answering(name, answer))

    def _answering(self, name: str, answer: Callable[[], Any]) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            if name in self.failing:
                raise NVMLError(self.failing[name])
            return answer()

        return call

    def nvmlInit(self) -> None:  # noqa: N802  the library's name
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked_for.append(uuid)
        if not uuid.startswith("GPU-"):
            raise NVMLError(6)
        return uuid

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self.asked_for.append(index)
        return index


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """What `import pynvml` finds."""
    double = Library()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", double)
    return double


def test_a_reading_comes_back_after_an_error_that_passes(library: Library) -> None:
    """A timeout is no reason never to ask again; that the device does not have it is one."""
    source = samplers.open_device(InUse(0, ""))
    assert source is not None
    healthy = [name for name, _ in source(1.0)]
    library.failing = {
        "nvmlDeviceGetPowerUsage": Library.NVML_ERROR_TIMEOUT,
        "nvmlDeviceGetTemperature": Library.NVML_ERROR_NOT_SUPPORTED,
    }
    during = [name for name, _ in source(1.0)]
    library.failing = {}
    after = [name for name, _ in source(1.0)]

    assert set(healthy) - set(during) == {"gpu power W", "gpu temperature C"}
    assert set(healthy) - set(after) == {"gpu temperature C"}


def test_a_device_that_falls_off_the_bus_is_said_once(library: Library, caplog: pytest.LogCaptureFixture) -> None:
    """In the log and on the timeline."""
    source = samplers.open_device(InUse(0, ""))
    assert source is not None
    library.failing = {name: Library.NVML_ERROR_GPU_IS_LOST for name in vars(library) if name.startswith("nvmlDevice")}
    samples = [sample for _ in range(3) for sample in source(1.0)]

    assert samples == [("gpu lost", 1.0)]
    assert sum("fallen off the bus" in message for message in caplog.messages) == 1


@pytest.mark.parametrize(("reasons", "throttled"), [(0x4, 0.0), (0x40, 1.0), (0x84, 1.0)])
def test_the_power_cap_alone_is_no_throttling(library: Library, reasons: int, throttled: float) -> None:
    """Busy devices run at it."""
    library.reasons = reasons
    source = samplers.open_device(InUse(0, ""))
    assert source is not None

    assert dict(source(1.0))["gpu throttled"] == throttled


def test_the_device_is_asked_for_when_the_training_uses_it(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in `init`, before the script has chosen one; and by what it is called everywhere, not by its place."""
    current = [0]
    monkeypatch.setattr(own_device._Noted, "device", None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid=f"uuid-of-{device}")
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    source = samplers._when_in_use(own_device.in_use)
    assert list(source(1.0)) == []
    current[0] = 1
    own_device.note()

    assert dict(source(1.0))["gpu sm clock MHz"] == 1755
    assert library.asked_for == ["GPU-uuid-of-1"]
    assert own_device.in_use() == InUse(7, "uuid-of-1", 1)


def test_without_a_uuid_the_number_has_to_do(library: Library) -> None:
    """As with a torch that does not tell it."""
    assert samplers.open_device(InUse(7, "")) is not None
    assert library.asked_for == [7]
