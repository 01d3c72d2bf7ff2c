"""Traces that were read before, kept as Arrow: the second look at a large trace is instant.

A trace is kept under a key of its files' content and of the version of the tables, in a folder that is put in place whole by
renaming, so that readers and writers at the same time never see half of one.  Columns have checksums, and what is read back is
held against what was written: whatever goes wrong with the cache, the trace is read from its files.

A file holds the columns of a table one behind the other, each as an Arrow stream of its own.  A column that is replaced (times,
by those on the common clock) is then given back alone, and places of args are read for the rank that somebody asks about.
"""

import hashlib
import logging
import mmap
import os
import time
import weakref
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from ..errors import TraceError
from ..model.columns import Encoded, assemble
from ..model.ending import ends_from
from ..model.trace import TABLES, Clock, RankClock, Trace, TraceMeta
from ..vocabulary import Category
from . import cache_entries
from .args import FileArgs, Places, PlacesLater
from .cache_entries import cache_folder
from .mounts import is_local
from .source import Source

#: Changes with the tables and with what readers make of files: what older versions have kept is not found any more.
VERSION: Final = 18

#: Smaller files are read as fast as the cache.
MIN_NBYTES: Final = 4 * 1024 * 1024

#: All that is kept; the traces that were not used for the longest time go first.
MAX_NBYTES: Final = 10 * 1024**3

#: Of larger files this much at several places is looked at, and when they were changed.
_WHOLE_NBYTES: Final = 32 * 1024 * 1024
_SAMPLE_NBYTES: Final = 64 * 1024
_SAMPLES: Final = 16
#: A large file that was changed less than this ago may change again without its times showing it.
_RACY_NS: Final = 20_000_000

#: Of the files of tables: Arrow's streams, not compressed, so that nothing has to be unpacked.
_ENDING: Final = ".arrow"
#: The file that says where args lie, or that holds them.
_ARGS: Final = "args"

#: Files that are mapped, for as long as somebody has a column of them.
_MAPPINGS: Final = weakref.WeakSet[mmap.mmap]()

Piece = list[int]
"""Where something lies in a file: offset, bytes, checksum."""

_log = logging.getLogger("tlkit.timeline")


def _digest(path: Path) -> bytes | None:
    """What tells a file's content from another's; None if that cannot be told yet.

    Of a large file it is parts, and when it was changed: its date can be set back, the time of its inode's last change cannot.
    """
    found = path.stat()
    digest = hashlib.blake2b(f"{found.st_size}".encode(), digest_size=20)
    with path.open("rb", buffering=0) as file:
        if found.st_size <= _WHOLE_NBYTES:
            digest.update(file.read())
            return digest.digest()
        if 0 <= time.time_ns() - found.st_ctime_ns < _RACY_NS:
            return None
        digest.update(f"{found.st_dev} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}".encode())
        for number in range(_SAMPLES):
            file.seek((found.st_size - _SAMPLE_NBYTES) * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_NBYTES))
    return digest.digest()


def key_of(sources: Sequence[Source], format_name: str) -> str | None:
    """The key of a trace; None if it is too small to be kept, or nothing is."""
    if cache_folder() is None or sum(source.path.stat().st_size for source in sources) < MIN_NBYTES:
        return None
    digest = hashlib.blake2b(f"{VERSION} {format_name}".encode(), digest_size=20)
    for source in sources:
        part = _digest(source.path)
        if part is None:
            return None
        digest.update(part)
    return digest.hexdigest()


def load(key: str, sources: Sequence[Source]) -> Trace | None:
    """A trace that was kept; None if it was not, or cannot be read."""
    base = cache_folder()
    if base is None:
        return None
    folder = base / key
    if not cache_entries.is_own(folder):
        return None
    try:
        described = cache_entries.read_description(folder)
        os.utime(folder)  # when it was used last
        frames = {name: _load_table(folder, name, described) for name in TABLES}
        raw_args = _load_args(folder, described, sources)
        if len(raw_args) != described["raw_args"]:
            raise ValueError("args are missing")
        return Trace(meta=meta_from(described["meta"], sources), raw_args=raw_args, cache_key=key, **frames)
    except Exception as error:  # whatever is in the entry, the trace can be read from its files
        _log.debug("the kept trace %s cannot be read: %r", key, error)
        cache_entries.remove(folder)
        return None


def folder_of(trace: Trace) -> Path | None:
    """The entry that keeps a trace, for those who keep beside it what they have made of it; None if it is not kept."""
    base = cache_folder()
    if base is None or trace.cache_key is None:
        return None
    folder = base / trace.cache_key
    return folder if cache_entries.is_own(folder) else None


def store(key: str, trace: Trace, sources: Sequence[Source]) -> Trace:
    """Keep a trace.  Failures are logged and have no other effect.

    Returns:
        The trace; where it was kept, its places of args are read from there from now on.
    """
    base = cache_folder()
    if base is None:
        return trace
    try:
        scratch = cache_entries.create(base)
        try:
            tables = {name: _store_table(scratch, name, getattr(trace, name)) for name in TABLES}
            described = {
                "meta": describe_meta(trace.meta, sources),
                "texts": {name: texts for name, (_, texts) in tables.items()},
                "rows": {name: len(getattr(trace, name)) for name in TABLES},
                "raw_args": len(trace.raw_args),
                "args": _store_args(scratch, trace.raw_args, sources),
                "pieces": {name: pieces for name, (pieces, _) in tables.items()},
            }
            cache_entries.put_in_place(scratch, base / key, described)
        except BaseException:
            cache_entries.remove(scratch)
            raise
        most = int(os.environ.get("TLKIT_CACHE_BYTES") or MAX_NBYTES)
        cache_entries.forget_oldest(base, key, most, time.time())
        if isinstance(trace.raw_args, FileArgs):
            trace = replace(trace, raw_args=_load_args(base / key, described, sources))
        return replace(trace, cache_key=key)
    except (OSError, ValueError, pa.ArrowException) as error:
        _log.warning("the trace is not kept in %s: %s", base, error)
    return trace


def _store_table(folder: Path, name: str, table: pd.DataFrame) -> tuple[list[Piece], dict[str, list[str]]]:
    """Write a table, texts as numbers; returns where its columns lie, and the texts."""
    columns, texts = [], {}
    for column, dtype in TABLES[name].items():
        if dtype == "category":
            columns.append({column: pa.array(table[column].cat.codes.to_numpy())})
            texts[column] = [str(text) for text in table[column].cat.categories]
        else:
            columns.append({column: pa.array(table[column].to_numpy())})
    return _write(folder, name, columns), texts


def _write(folder: Path, name: str, parts: Iterable[dict[str, pa.Array]]) -> list[Piece]:
    """Write small tables of some columns one behind the other; returns where each of them lies."""
    path = cache_entries.touch(folder / f"{name}{_ENDING}")
    pieces = []
    with path.open("wb") as file:
        for part in parts:
            table = pa.table(part)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                # One batch: each column comes back in one piece, without being put together.
                writer.write_table(table, max_chunksize=max(len(table), 1))
            content = sink.getvalue()
            pieces.append([file.tell(), len(content), zlib.crc32(content)])
            file.write(content)
    return pieces


def _decoded(content: pa.Buffer | bytes, piece: Piece) -> pa.Table:
    """What was written there.

    Raises:
        ValueError: it is something else.
    """
    _, nbytes, checksum = piece
    if len(content) != nbytes or zlib.crc32(content) != checksum:
        raise ValueError("not what was written")
    return pa.ipc.open_stream(content).read_all()


def _load_table(folder: Path, name: str, described: dict[str, Any]) -> pd.DataFrame:
    texts, rows = described["texts"][name], described["rows"][name]
    part: dict[str, np.ndarray | Encoded] = {}
    path = folder / f"{name}{_ENDING}"
    can_be_mapped = is_local(folder)
    for (column, dtype), piece in zip(TABLES[name].items(), described["pieces"][name], strict=True):
        mapped = _mapped(path) if can_be_mapped else None
        content = (
            _part_of(path, piece) if mapped is None else pa.py_buffer(memoryview(mapped)[piece[0] : sum(piece[:2])])
        )
        values = _decoded(content, piece)[column].to_numpy()
        if len(values) != rows:
            raise ValueError(f"{name}.{column}: rows are missing")
        if dtype != "category":
            part[column] = values
        elif rows and not -1 <= int(values.min()) <= int(values.max()) < len(texts[column]):
            raise ValueError(f"{name}.{column}: there is no such text")
        else:
            part[column] = (values, texts[column])
        if mapped is not None:
            _leave(mapped)  # looked at in full, for the checksum: what nobody looks at again need not be in memory
    return assemble(TABLES[name], [part])


def _mapped(path: Path) -> mmap.mmap:
    """A file's content, which the system reads when it is looked at.

    No memory has to be found and filled, and a column that is replaced gives its own mapping back.  But another host may remove
    what lies in a shared home, and a page that cannot be had any more ends the process: there files are read.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _MAPPINGS.add(mapped)
    return mapped


def _part_of(path: Path, piece: Piece) -> bytes:
    with path.open("rb") as file:
        file.seek(piece[0])
        return file.read(piece[1])


def is_mapped(values: np.ndarray) -> bool:
    """Whether an array lies in a file of the cache, and is in memory only where somebody has looked at it."""
    at = values.__array_interface__["data"][0]
    return any(begin <= at < begin + len(mapped) for mapped in list(_MAPPINGS) for begin in (_address_of(mapped),))


def leave_memory() -> None:
    """Have columns that lie in files of the cache out of this process's memory, until somebody looks at them again."""
    for mapped in list(_MAPPINGS):
        _leave(mapped)


def _leave(mapped: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _address_of(mapped: mmap.mmap) -> int:
    found: int = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    return found


def _store_args(folder: Path, raw_args: Sequence[bytes], sources: Sequence[Source]) -> dict[str, Any]:
    """Write where the args are, or the args themselves if they are in memory anyhow."""
    if not isinstance(raw_args, FileArgs):
        return {"texts": _write(folder, _ARGS, [{"args": pa.array(list(raw_args), pa.large_binary())}])}
    number_of = {source.path: number for number, source in enumerate(sources)}
    all_places = [raw_args.places(number) for number in range(len(raw_args.parts))]
    pieces = _write(
        folder, _ARGS, ({"start": pa.array(each.starts), "nbytes": pa.array(each.sizes)} for each in all_places)
    )
    return {
        "places": [
            {
                "source": number_of[source.path],
                "count": len(places),
                "own": [text.decode("utf-8", "backslashreplace") for text in places.own],
                "piece": piece,
            }
            for (source, _), places, piece in zip(raw_args.parts, all_places, pieces, strict=True)
        ]
    }


def _load_args(folder: Path, described: dict[str, Any], sources: Sequence[Source]) -> Sequence[bytes]:
    path = folder / f"{_ARGS}{_ENDING}"
    found = described["args"]
    if "texts" in found:
        (piece,) = found["texts"]
        return tuple(_decoded(path.read_bytes(), piece)["args"].to_pylist())
    kept = _KeptPlaces(path)
    if kept.nbytes != sum(part["piece"][1] for part in found["places"]):
        raise ValueError("places of args are missing")
    return FileArgs(
        (sources[part["source"]], PlacesLater(part["count"], partial(kept.read, part))) for part in found["places"]
    )


class _KeptPlaces:
    """The file that says where args lie.  It stays open, since the entry may be removed by whoever needs the room."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self.nbytes = os.fstat(self._descriptor).st_size

    def read(self, part: dict[str, Any]) -> Places:
        """The places of a part, as the description has it.

        Raises:
            TraceError: they are not what was written.
        """
        offset, nbytes, _ = part["piece"]
        try:
            table = _decoded(os.pread(self._descriptor, nbytes, offset), part["piece"])
            if len(table) != part["count"]:
                raise ValueError("places are missing")
        except (OSError, ValueError, pa.ArrowException) as error:
            cache_entries.remove(self._path.parent)  # so that the trace is read from its files the next time
            raise TraceError(f"{self._path} is damaged: open the trace again to see args ({error})") from error
        return Places(table["start"].to_numpy(), table["nbytes"].to_numpy(), [text.encode() for text in part["own"]])


def describe_meta(meta: TraceMeta, sources: Sequence[Source]) -> dict[str, Any]:
    """What is known about a trace, as JSON can say it; files as numbers of `sources`."""
    number_of = {str(source.path): number for number, source in enumerate(sources)}
    described = asdict(meta)
    described["files"] = [number_of[name] for name in meta.files if name in number_of]
    described["known_categories"] = sorted(meta.known_categories)
    described["hosts"] = {str(rank): host for rank, host in meta.hosts.items()}
    described["settings"] = {str(rank): on for rank, on in meta.settings.items()}
    described["setting_details"] = {str(rank): words for rank, words in meta.setting_details.items()}
    described["local_ranks"] = {str(rank): local for rank, local in meta.local_ranks.items()}
    return described


def meta_from(described: dict[str, Any], sources: Sequence[Source]) -> TraceMeta:
    """The other way around; file names are those of today."""
    meta = TraceMeta(**described)
    return replace(
        meta,
        files=tuple(str(sources[number].path) for number in described["files"]),
        ranks=tuple(described["ranks"]),
        notes=tuple(described["notes"]),
        largest_gradient=tuple(described["largest_gradient"]) if described["largest_gradient"] else None,
        clock=Clock(
            method=described["clock"]["method"],
            uncertainty_ns=described["clock"]["uncertainty_ns"],
            ranks={int(rank): RankClock(**clock) for rank, clock in described["clock"]["ranks"].items()},
        ),
        known_categories=frozenset(Category(name) for name in described["known_categories"]),
        settings={int(rank): on for rank, on in described["settings"].items()},
        setting_details={int(rank): words for rank, words in described["setting_details"].items()},
        hosts={int(rank): host for rank, host in described["hosts"].items()},
        local_ranks={int(rank): local for rank, local in described["local_ranks"].items()},
        ends=ends_from(described["ends"]),
    )
