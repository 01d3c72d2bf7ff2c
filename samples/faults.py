"""Faults to try the diagnosis on: each slows a training down in one well-known way.

A fault is written `name` or `name:option=value,…`, for example `slow-forward:rank=1,ms=50`.
"""

import time
from dataclasses import dataclass

FAULTS = (
    "none",
    "slow-forward",
    "periodic-forward",
    "slow-backward",
    "slow-optimizer",
    "slow-host",
    "slow-dataset",
    "slow-collate",
    "checkpoint",
    "huge-tensor",
)


@dataclass(frozen=True)
class Fault:
    """What to do wrong."""

    name: str = "none"
    rank: int | None = None
    """Only on this rank; None for all."""
    ms: float = 50.0

    def strike(self, name: str, rank: int, share: float = 1.0) -> None:
        """Sleep for a share of the time, if this is the fault and the rank is meant."""
        if self.name == name and self.rank in {None, rank}:
            time.sleep(share * self.ms / 1e3)


def parse_fault(text: str) -> Fault:
    """Read a fault from the command line.

    Raises:
        ValueError: there is no such fault or option.
    """
    name, _, rest = text.partition(":")
    if name not in FAULTS:
        raise ValueError(f"{name}: choose one of {', '.join(FAULTS)}")
    options = dict(part.split("=", 1) for part in rest.split(",") if part)
    rank = options.pop("rank", None)
    ms = float(options.pop("ms", 50))
    if options:
        raise ValueError(f"{', '.join(options)}: a fault has the options rank and ms")
    return Fault(name, None if rank is None else int(rank), ms)
