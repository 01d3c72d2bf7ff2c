"""Traces that were read before, kept as Arrow: the second look at a large trace is instant.

A trace is kept under a key of its files' content and of the version of the tables, in a folder that is put in place whole by
renaming, so that readers and writers at the same time never see half of one.  Files have checksums, and what is read back is held
against what was written: whatever goes wrong with the cache, the trace is read from its files.
"""

import hashlib
import logging
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from ..model.columns import Encoded, assemble
from ..model.ending import ends_from
from ..model.trace import TABLES, Clock, RankClock, Trace, TraceMeta
from ..vocabulary import Category
from . import cache_entries
from .args import FileArgs, Places
from .source import Source

#: Changes with the tables and with what readers make of files: what older versions have kept is not found any more.
VERSION: Final = 13

#: Smaller files are read as fast as the cache.
MIN_NBYTES: Final = 4 * 1024 * 1024

#: All that is kept; the traces that were not used for the longest time go first.
MAX_NBYTES: Final = 10 * 1024**3

#: Of larger files this much at several places is looked at, and when they were changed.
_WHOLE_NBYTES: Final = 32 * 1024 * 1024
_SAMPLE_NBYTES: Final = 64 * 1024
_SAMPLES: Final = 64
#: A large file that was changed less than this ago may change again without its times showing it.
_RACY_NS: Final = 20_000_000

#: Of the files of tables: Arrow's IPC format, not compressed, so that nothing has to be unpacked.
_ENDING: Final = ".arrow"

_log = logging.getLogger("tlkit.timeline")


def cache_folder() -> Path | None:
    """Where traces are kept: TLKIT_CACHE_DIR, else the user's cache folder; None if TLKIT_CACHE_DIR is empty."""
    chosen = os.environ.get("TLKIT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tlkit" / "traces"


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
        return Trace(meta=meta_from(described["meta"], sources), raw_args=raw_args, **frames)
    except Exception as error:  # whatever is in the entry, the trace can be read from its files
        _log.debug("the kept trace %s cannot be read: %r", key, error)
        cache_entries.remove(folder)
        return None


def store(key: str, trace: Trace, sources: Sequence[Source]) -> None:
    """Keep a trace.  Failures are logged and have no other effect."""
    base = cache_folder()
    if base is None:
        return
    try:
        scratch = cache_entries.create(base)
        try:
            texts = {name: _store_table(scratch, name, getattr(trace, name)) for name in TABLES}
            described = {
                "meta": describe_meta(trace.meta, sources),
                "texts": texts,
                "rows": {name: len(getattr(trace, name)) for name in TABLES},
                "raw_args": len(trace.raw_args),
                "args": _store_args(scratch, trace.raw_args, sources),
                "checksums": {path.stem: _checksum_of_file(path) for path in scratch.glob(f"*{_ENDING}")},
            }
            cache_entries.put_in_place(scratch, base / key, described)
        except BaseException:
            cache_entries.remove(scratch)
            raise
        most = int(os.environ.get("TLKIT_CACHE_BYTES") or MAX_NBYTES)
        cache_entries.forget_oldest(base, key, most, time.time())
    except (OSError, ValueError, pa.ArrowException) as error:
        _log.warning("the trace is not kept in %s: %s", base, error)


def _store_table(folder: Path, name: str, table: pd.DataFrame) -> dict[str, list[str]]:
    """Write a table, texts as numbers; returns the texts."""
    columns, texts = {}, {}
    for column, dtype in TABLES[name].items():
        if dtype == "category":
            columns[column] = pa.array(table[column].cat.codes.to_numpy())
            texts[column] = [str(text) for text in table[column].cat.categories]
        else:
            columns[column] = pa.array(table[column].to_numpy())
    _write(folder, name, columns)
    return texts


def _write(folder: Path, name: str, columns: dict[str, pa.Array]) -> None:
    path = cache_entries.touch(folder / f"{name}{_ENDING}")
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        # One batch: each column comes back in one piece, without being put together.
        writer.write_table(table, max_chunksize=max(len(table), 1))


def _checksum_of_file(path: Path) -> int:
    with pa.memory_map(str(path)) as file:
        return zlib.crc32(file.read_buffer())


def _read(folder: Path, name: str, described: dict[str, Any]) -> pa.Table:
    # Read rather than mapped, which is hardly faster: another host may remove what lies in a shared home, and a page
    # that cannot be had any more ends the process.
    with pa.OSFile(str(folder / f"{name}{_ENDING}")) as file:
        content = file.read_buffer()
    if zlib.crc32(content) != described["checksums"][name]:
        raise ValueError(f"{name}: not what was written")
    return pa.ipc.open_file(content).read_all()


def _load_table(folder: Path, name: str, described: dict[str, Any]) -> pd.DataFrame:
    table, texts = _read(folder, name, described), described["texts"][name]
    if len(table) != described["rows"][name]:
        raise ValueError(f"{name}: rows are missing")
    part: dict[str, np.ndarray | Encoded] = {}
    for column, dtype in TABLES[name].items():
        values = table[column].to_numpy()
        if dtype != "category":
            part[column] = values
            continue
        if len(values) and not -1 <= int(values.min()) <= int(values.max()) < len(texts[column]):
            raise ValueError(f"{name}.{column}: there is no such text")
        part[column] = (values, texts[column])
    return assemble(TABLES[name], [part])


def _store_args(folder: Path, raw_args: Sequence[bytes], sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Write where the args are, or the args themselves if they are in memory anyhow."""
    if not isinstance(raw_args, FileArgs):
        _write(folder, "args", {"args": pa.array(list(raw_args), pa.large_binary())})
        return []
    number_of = {source.path: number for number, source in enumerate(sources)}
    described = []
    for number, (source, places) in enumerate(raw_args.parts):
        columns = {"start": pa.array(places.starts), "nbytes": pa.array(places.sizes)}
        _write(folder, f"args{number}", columns)
        own = [text.decode("utf-8", "backslashreplace") for text in places.own]
        described.append({"source": number_of[source.path], "own": own})
    return described


def _load_args(folder: Path, described: dict[str, Any], sources: Sequence[Source]) -> Sequence[bytes]:
    if not described["args"]:
        return tuple(_read(folder, "args", described)["args"].to_pylist())
    parts = []
    for number, part in enumerate(described["args"]):
        table = _read(folder, f"args{number}", described)
        own = [text.encode() for text in part["own"]]
        places = Places(table["start"].to_numpy(), table["nbytes"].to_numpy(), own)
        parts.append((sources[part["source"]], places))
    return FileArgs(parts)


def describe_meta(meta: TraceMeta, sources: Sequence[Source]) -> dict[str, Any]:
    """What is known about a trace, as JSON can say it; files as numbers of `sources`."""
    number_of = {str(source.path): number for number, source in enumerate(sources)}
    described = asdict(meta)
    described["files"] = [number_of[name] for name in meta.files if name in number_of]
    described["known_categories"] = sorted(meta.known_categories)
    described["hosts"] = {str(rank): host for rank, host in meta.hosts.items()}
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
        hosts={int(rank): host for rank, host in described["hosts"].items()},
        local_ranks={int(rank): local for rank, local in described["local_ranks"].items()},
        ends=ends_from(described["ends"]),
    )
