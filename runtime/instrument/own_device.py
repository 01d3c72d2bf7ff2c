"""The device of this process, as timelines and the management library call it."""

import os
from dataclasses import dataclass
from typing import Any

import torch


def kind() -> str:
    """`cuda` where torch can use such a device, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def versions() -> dict[str, str]:
    """What a timeline names."""
    return {"torch": str(torch.__version__)}


@dataclass(frozen=True, slots=True)
class InUse:
    """The device that this rank computes on, as its management library can find it."""

    index: int
    """Among those of the host."""
    uuid: str
    """"" if torch does not tell."""
    ordinal: int = 0
    """Among those that torch sees."""


class _Noted:
    device: InUse | None = None


def note() -> None:
    """Remember the calling thread's current device: it is the one in use from the first step on, and not before."""
    ordinal = torch.cuda.current_device()
    _Noted.device = InUse(_index(ordinal), _uuid(), ordinal)


def in_use() -> InUse | None:
    """The device that was noted; None until then."""
    return _Noted.device


def _uuid() -> str:
    try:
        properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        return str(getattr(properties, "uuid", ""))
    except (RuntimeError, AssertionError):  # torch's ways to say that there is none
        return ""


def _index(mine: int) -> int:
    """A device's number among all of the host, where CUDA counts those that CUDA_VISIBLE_DEVICES leaves.

    It may name them by UUID, and CUDA may count the fastest first: the UUID says more.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    chosen = [part.strip() for part in visible.split(",") if part.strip()]
    if chosen and all(part.isdigit() for part in chosen) and mine < len(chosen):
        return int(chosen[mine])
    return mine
