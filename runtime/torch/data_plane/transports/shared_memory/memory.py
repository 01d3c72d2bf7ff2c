"""How ranks of one host come to the same memory: rank 0 makes it, tells the others through the job's store, and all agree.

It is an anonymous file: it has no name that others could open, needs no room in /dev/shm, and is gone with the last process that
has it open.  The others open it through rank 0's folder in /proc, which the kernel allows to processes of the same user only.
"""

import importlib
import json
import mmap
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any, Final

from .....core.binding import Place
from .....core.topology import boot_id

#: What a rank puts in at a time: at 256 KB to 1 MB most of it stays in a processor's cache until it is read.
SLOT_NBYTES: Final = 512 * 1024

#: Of many ranks together.
_MAX_NBYTES: Final = 32 * 1024 * 1024
_MIN_SLOT_NBYTES: Final = 64 * 1024

_TOKEN_NBYTES: Final = 16


def load_compiled() -> Any:
    """What waits for other processes without the interpreter's lock; None where it was not compiled."""
    try:
        return importlib.import_module("._native", __package__)
    except ImportError:
        return None


_compiled: Final = load_compiled()


def is_built() -> bool:
    """Whether this installation can share memory."""
    return _compiled is not None and hasattr(os, "memfd_create")


class NotShared(Exception):
    """The ranks have no memory in common; says why."""


def share(place: Place) -> Any:
    """Open memory that all ranks of `place` have in common.

    Returns:
        This rank's `Segment` of it (native.c).

    Raises:
        NotShared: on every rank, if one of them cannot have it.
        RuntimeError: a rank does not answer.
    """
    kept: int | None = None
    segment = None
    refusal = ""
    try:
        try:
            if place.rank == 0:
                kept, segment = _make(place)
            else:
                segment = _open(place, json.loads(place.store.get("memory")))
        except (NotShared, OSError, ValueError) as error:
            refusal = f"rank {place.ranks[place.rank]}: {error}"
            if place.rank == 0:
                place.store.set("memory", json.dumps({"refusal": refusal}))
        return _agree(place, segment, refusal)
    finally:
        if kept is not None:
            os.close(kept)


def _agree(place: Place, segment: Any, refusal: str) -> Any:
    """All ranks take the memory, or none does."""
    if place.rank == 0:
        refusals = [refusal] + [place.store.get(f"memory/{rank}").decode() for rank in range(1, place.size)]
        refusal = next(filter(None, refusals), "")
        place.store.set("memory/agreed", refusal)
    else:
        place.store.set(f"memory/{place.rank}", refusal)
        refusal = place.store.get("memory/agreed").decode()
    if refusal:
        raise NotShared(refusal)
    return segment


def _slot_nbytes(size: int) -> int:
    fitting = _MAX_NBYTES // (2 * size) // 4096 * 4096
    return max(min(SLOT_NBYTES, fitting), _MIN_SLOT_NBYTES)


def _where() -> list[Any]:
    """Equal for processes that are to share memory: they see each other, and who is on another network is reached through it."""
    namespaces = [Path("/proc/self/ns", name).stat().st_ino for name in ("net", "pid")]
    return [boot_id(), sys.byteorder, *namespaces]


def _built() -> Any:
    if not is_built():
        raise NotShared("it was installed without a C compiler, or this is not Linux")
    return _compiled


def _make(place: Place) -> tuple[int, Any]:
    """Make the memory, and tell the others.

    Returns:
        What keeps it open until all have it, and this rank's segment.
    """
    compiled, slot_nbytes = _built(), _slot_nbytes(place.size)
    used_nbytes = compiled.nbytes_for(place.size, slot_nbytes)
    descriptor = os.memfd_create("tlkit-collectives", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # All of it is taken now: a process that runs out of memory when it writes is killed.
        os.posix_fallocate(descriptor, 0, used_nbytes + _TOKEN_NBYTES)
        memory = mmap.mmap(descriptor, used_nbytes + _TOKEN_NBYTES)
        token = secrets.token_bytes(_TOKEN_NBYTES)
        memory[used_nbytes:] = token
        told = {
            "where": _where(),
            "process": os.getpid(),
            "descriptor": descriptor,
            "slot_nbytes": slot_nbytes,
            "token": token.hex(),
        }
        place.store.set("memory", json.dumps(told))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, compiled.Segment(memory, place.rank, place.size, slot_nbytes, place.timeout_s)


def _open(place: Place, told: dict[str, Any]) -> Any:
    """Open what rank 0 has made.

    Raises:
        NotShared: it is out of reach, or is something else.
        OSError: likewise.
    """
    if "refusal" in told:
        raise NotShared(told["refusal"])
    compiled, slot_nbytes = _built(), int(told["slot_nbytes"])
    if told["where"] != _where():
        raise NotShared("it is on another host, or on a network of its own")
    # Where the number means another process, nothing must block, and nothing but what was announced is taken.
    path = f"/proc/{int(told['process'])}/fd/{int(told['descriptor'])}"
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        used_nbytes = compiled.nbytes_for(place.size, slot_nbytes)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != used_nbytes + _TOKEN_NBYTES:
            raise NotShared(f"{path} is another file: the processes do not see each other")
        memory = mmap.mmap(descriptor, status.st_size)
    finally:
        os.close(descriptor)
    if memory[used_nbytes:] != bytes.fromhex(told["token"]):
        raise NotShared(f"{path} is another file: the processes do not see each other")
    return compiled.Segment(memory, place.rank, place.size, slot_nbytes, place.timeout_s)
