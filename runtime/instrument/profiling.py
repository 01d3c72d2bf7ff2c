"""`tlkit.trace_handler()`: what torch.profiler has seen, written beside the timeline so that both are read as one."""

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import torch.distributed as dist

from ...timeline.read.merging import Beside
from ...timeline.record import recorder
from ...timeline.record.shard_file import private_opener
from ...timeline.record.shard_format import ShardHeader
from ..core.topology import read_launched

_log = logging.getLogger("tlkit.runtime")

_COPIED_AT_ONCE: Final = 1 << 20


def trace_handler(path: str | os.PathLike[str] | None = None) -> Callable[[Any], None]:
    """For `torch.profiler.profile(on_trace_ready=…)`: writes every cycle of every rank to a file of its own.

    Beside `t.json` rank r gets `t.profile.rank<r>.json`, later cycles `t.profile2.rank<r>.json` and so on.  `tl-analyze t.json
    t.profile.rank*.json` reads them as one.

    Args:
        path: a name like that of a timeline; None for the timeline that is being written when the profiler is ready.

    A profile that cannot be written, for lack of a place or of a folder, is logged, and the training goes on.
    """
    cycles = 0

    def handle(profiler: Any) -> None:
        nonlocal cycles
        cycles += 1
        writer = recorder.timeline()
        header = None if writer is None else writer.header
        rank = header.rank if header is not None else _rank()
        if path is not None:
            base = Path(path)
        elif writer is not None:
            base = _first_shard(writer.path, rank)
        else:
            _log.error("tlkit.trace_handler() has no path to write to: pass one, or record a timeline at the same time")
            return
        number = "" if cycles == 1 else str(cycles)
        target = base.with_name(f"{base.stem}.profile{number}.rank{rank}.json")
        try:
            _export(profiler, target, header)
        except Exception as error:  # whatever torch raises, as a RuntimeError for a folder that is missing
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0][:200]
            _log.error(
                "the profile %s cannot be written (%s): choose a folder that exists and is writable", target, reason
            )
        else:
            _log.info("the profile of rank %d is in %s", rank, target)

    return handle


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else read_launched().rank


def _first_shard(own: Path, rank: int) -> Path:
    """The name that the user gave the timeline, from this rank's."""
    return own.with_name(own.name.replace(f".rank{rank}.", ".", 1)) if rank else own


def _export(profiler: Any, target: Path, header: ShardHeader | None) -> None:
    """Write the profiler's file with our word at its head, whole or not at all."""
    raw, ready = target.with_suffix(".raw"), target.with_suffix(".part")
    try:
        profiler.export_chrome_trace(str(raw))
        if header is None:
            raw.replace(target)
            return
        with raw.open("rb") as source, open(ready, "wb", opener=private_opener) as file:
            begun = source.read(_COPIED_AT_ONCE)
            before, brace, after = begun.partition(b"{")
            file.write(before + brace + b'"tlkit": ' + msgspec.json.encode(_beside(header)) + b"," + after)
            shutil.copyfileobj(source, file, _COPIED_AT_ONCE)
        ready.replace(target)
    finally:
        raw.unlink(missing_ok=True)
        ready.unlink(missing_ok=True)


def _beside(header: ShardHeader) -> Beside:
    clock = header.clock
    of_run_ns = clock.origin_unix_ns + time.monotonic_ns() - clock.origin_ns
    return Beside(header.run_id, header.rank, header.size, time.time_ns() - of_run_ns)
