"""Counters of an AMD device, through `amdsmi`, where that is installed (it comes with ROCm)."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...timeline.vocabulary import GPU_CLOCK
from .own_device import InUse
from .sources import CounterSource, Sample

_log = logging.getLogger("tlkit.instrument")

_BYTES_PER_MB: Final = 1024 * 1024

Reading = Callable[[], Any]


def open_device(device: InUse) -> CounterSource | None:
    """What the library tells of a device; None if there is no library, or no such device."""
    try:
        import amdsmi  # noqa: PLC0415  optional

        amdsmi.amdsmi_init()
        handle = _handle(amdsmi, device)
    except Exception:  # a library that is not there, or for another driver
        return None
    readings = _readings(amdsmi, handle)

    def sample(_: float) -> Iterator[Sample]:
        for name, read in list(readings.items()):
            try:
                value = float(read())
            except (TypeError, ValueError):
                continue  # "N/A": not now
            except Exception as error:  # what the library says when it has no such reading
                _log.debug("%s: %s", name, error)
                del readings[name]
                continue
            yield name, value

    return sample


def _handle(amdsmi: Any, device: InUse) -> Any:
    """By the number that HIP has for it, where the library tells that (ROCm 6.4), else by place."""
    handles = amdsmi.amdsmi_get_processor_handles()
    for handle in handles:
        try:
            if amdsmi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"] == device.index:
                return handle
        except Exception as error:  # an older library
            _log.debug("no numbers of HIP: %s", error)
            break
    return handles[device.index]


def _readings(amdsmi: Any, handle: Any) -> dict[str, Reading]:
    """Counters, in the names and units of those of NVIDIA's devices."""
    temperature, metric = amdsmi.AmdSmiTemperatureType, amdsmi.AmdSmiTemperatureMetric
    clock = amdsmi.AmdSmiClkType

    def power() -> Any:
        found = amdsmi.amdsmi_get_power_info(handle)
        return next((found[key] for key in _POWERS if isinstance(found.get(key), (int, float))), None)

    def megahertz(kind: Any) -> Any:
        found = amdsmi.amdsmi_get_clock_info(handle, kind)
        return found.get("clk", found.get("cur_clk"))

    return {
        "gpu utilisation %": lambda: amdsmi.amdsmi_get_gpu_activity(handle)["gfx_activity"],
        "gpu memory utilisation %": lambda: amdsmi.amdsmi_get_gpu_activity(handle)["umc_activity"],
        "gpu memory used bytes": lambda: _BYTES_PER_MB * amdsmi.amdsmi_get_gpu_vram_usage(handle)["vram_used"],
        "gpu power W": power,
        GPU_CLOCK: lambda: megahertz(clock.GFX),
        "gpu memory clock MHz": lambda: megahertz(clock.MEM),
        "gpu temperature C": lambda: amdsmi.amdsmi_get_temp_metric(handle, temperature.JUNCTION, metric.CURRENT),
        "gpu memory temperature C": lambda: amdsmi.amdsmi_get_temp_metric(handle, temperature.VRAM, metric.CURRENT),
    }


#: What the power is called, by device.
_POWERS: Final = ("current_socket_power", "average_socket_power")
