"""The device of this process, as timelines and the management library call it."""

import os

import torch


def kind() -> str:
    """`cuda` where torch can use such a device, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def versions() -> dict[str, str]:
    """What a timeline names."""
    return {"torch": str(torch.__version__)}


def index_for_nvml() -> int | None:
    """The number by which the management library knows this rank's device; None without one.

    It counts all devices of the host, CUDA those that CUDA_VISIBLE_DEVICES leaves.
    """
    if not torch.cuda.is_available():
        return None
    mine = torch.cuda.current_device()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    chosen = [part.strip() for part in visible.split(",") if part.strip()]
    if chosen and all(part.isdigit() for part in chosen) and mine < len(chosen):
        return int(chosen[mine])
    return mine
