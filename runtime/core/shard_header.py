"""What the first line of a rank's shard says about the rank."""

import os
import platform
import socket
from collections.abc import Mapping
from typing import NamedTuple

from ... import __version__
from ...timeline.record.shard_format import ShardClock, ShardHeader
from .control.clock_sync import ClockOffset
from .framework import used_framework
from .topology import boot_id


class RunIdentity(NamedTuple):
    """What all ranks of a run have in common."""

    run_id: str
    origin_ns: int
    """Rank 0's monotonic clock at time 0."""
    origin_unix_ns: int


def shard_header(
    run: RunIdentity,
    *,
    rank: int,
    size: int,
    local_rank: int,
    clock: ClockOffset,
    device: str,
    versions: Mapping[str, str],
    runtime: str = "tlkit",
) -> ShardHeader:
    """The header of the calling process's shard.

    Args:
        clock: how far this rank's clock is from rank 0's.
        device: `cuda` or `cpu`.
        versions: of the framework.
        runtime: who runs the collectives: `tlkit`, or `torch` for torch.distributed.
    """
    framework, of_framework = used_framework()
    return ShardHeader(
        run_id=run.run_id,
        rank=rank,
        size=size,
        local_rank=local_rank,
        host=socket.gethostname(),
        boot_id=boot_id(),
        process_id=os.getpid(),
        device=device,
        runtime=runtime,
        framework=framework,
        clock=ShardClock(
            origin_ns=run.origin_ns - clock.offset_ns,
            origin_unix_ns=run.origin_unix_ns,
            offset_ns=clock.offset_ns,
            uncertainty_ns=clock.uncertainty_ns,
            method=clock.method,
        ),
        versions={"tlkit": __version__, "python": platform.python_version()} | dict(versions) | dict(of_framework),
    )
