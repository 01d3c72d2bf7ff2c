"""Traces that were read before, kept as Parquet: the second look at a large trace is instant.

A trace is kept under a key of its files' content and of the version of the tables, in a folder that is put in place whole by
renaming, so that readers and writers at the same time never see half of one.  Whatever goes wrong with the cache, the trace is
read from its files.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .args import FileArgs, Places
from .columns import Encoded, assemble
from .ending import ends_from
from .source import Source
from .trace import TABLES, Clock, RankClock, Trace, TraceMeta
from .vocabulary import Category

#: Changes with the tables and with what readers make of files: what older versions have kept is not found any more.
VERSION: Final = 8

#: Smaller files are read as fast as the cache.
LEAST_NBYTES: Final = 4 * 1024 * 1024

#: All that is kept; the traces that were not used for the longest time go first.
MOST_NBYTES: Final = 10 * 1024**3

#: Of larger files this much at several places is looked at, and the time of the last change.
_WHOLE_NBYTES: Final = 32 * 1024 * 1024
_SAMPLE_NBYTES: Final = 64 * 1024
_SAMPLES: Final = 64

_log = logging.getLogger("tlkit.timeline")


def cache_folder() -> Path | None:
    """Where traces are kept: TLKIT_CACHE_DIR, else the user's cache folder; None if TLKIT_CACHE_DIR is empty."""
    chosen = os.environ.get("TLKIT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tlkit" / "traces"


def _digest(path: Path) -> bytes:
    """What tells a file's content from another's; of a large file parts, and when it was changed."""
    size = path.stat().st_size
    digest = hashlib.blake2b(f"{size}".encode(), digest_size=20)
    with path.open("rb", buffering=0) as file:
        if size <= _WHOLE_NBYTES:
            digest.update(file.read())
        else:
            digest.update(f"{path.stat().st_mtime_ns}".encode())
            for number in range(_SAMPLES):
                file.seek((size - _SAMPLE_NBYTES) * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_NBYTES))
    return digest.digest()


def key_of(sources: Sequence[Source], format_name: str) -> str | None:
    """The key of a trace; None if it is too small to be kept, or nothing is."""
    if cache_folder() is None or sum(source.path.stat().st_size for source in sources) < LEAST_NBYTES:
        return None
    digest = hashlib.blake2b(f"{VERSION} {format_name}".encode(), digest_size=20)
    for source in sources:
        digest.update(_digest(source.path))
    return digest.hexdigest()


def load(key: str, sources: Sequence[Source]) -> Trace | None:
    """A trace that was kept; None if it was not, or cannot be read."""
    base = cache_folder()
    if base is None:
        return None
    folder = base / key
    try:
        described = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
        os.utime(folder)  # when it was used last
        frames = {name: _load_table(folder, name, described["texts"][name]) for name in TABLES}
        return Trace(
            meta=meta_from(described["meta"], sources),
            raw_args=_load_args(folder, described["args"], sources),
            **frames,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        _log.debug("the kept trace %s cannot be read: %s", key, error)
        shutil.rmtree(folder, ignore_errors=True)
        return None


def store(key: str, trace: Trace, sources: Sequence[Source]) -> None:
    """Keep a trace.  Failures are logged and have no other effect."""
    base = cache_folder()
    if base is None:
        return
    try:
        base.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".writing-", dir=base))
        try:
            texts = {name: _store_table(scratch, name, getattr(trace, name)) for name in TABLES}
            described = {
                "meta": describe_meta(trace.meta, sources),
                "texts": texts,
                "args": _store_args(scratch, trace.raw_args, sources),
            }
            (scratch / "trace.json").write_text(json.dumps(described), encoding="utf-8")
            scratch.rename(base / key)
        except OSError:
            # Another process was faster, most of the time.
            shutil.rmtree(scratch, ignore_errors=True)
            if not (base / key).is_dir():
                raise
        _forget_oldest(base, key)
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
    # One row group: each column comes back in one piece, without being put together.
    options: dict[str, Any] = {"compression": "lz4", "use_dictionary": False, "row_group_size": max(len(table), 1)}
    pq.write_table(pa.table(columns), folder / f"{name}.parquet", **options)
    return texts


def _load_table(folder: Path, name: str, texts: dict[str, list[str]]) -> pd.DataFrame:
    table = pq.read_table(folder / f"{name}.parquet", memory_map=True)
    part: dict[str, np.ndarray | Encoded] = {}
    for column, dtype in TABLES[name].items():
        values = table[column].to_numpy()
        part[column] = (values, texts[column]) if dtype == "category" else values
    return assemble(TABLES[name], [part])


def _store_args(folder: Path, raw_args: Sequence[bytes], sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Write where the args are, or the args themselves if they are in memory anyhow."""
    if not isinstance(raw_args, FileArgs):
        pq.write_table(pa.table({"args": pa.array(list(raw_args), pa.large_binary())}), folder / "args.parquet")
        return []
    number_of = {source.path: number for number, source in enumerate(sources)}
    described = []
    for number, (source, places) in enumerate(raw_args.parts):
        pq.write_table(
            pa.table({"start": pa.array(places.starts), "nbytes": pa.array(places.sizes)}),
            folder / f"args{number}.parquet",
            compression="lz4",
            use_dictionary=False,
        )
        own = [text.decode("utf-8", "backslashreplace") for text in places.own]
        described.append({"source": number_of[source.path], "own": own})
    return described


def _load_args(folder: Path, described: list[dict[str, Any]], sources: Sequence[Source]) -> Sequence[bytes]:
    if not described:
        if not (folder / "args.parquet").exists():
            return ()
        return tuple(pq.read_table(folder / "args.parquet")["args"].to_pylist())
    parts = []
    for number, part in enumerate(described):
        table = pq.read_table(folder / f"args{number}.parquet", memory_map=True)
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


def _forget_oldest(base: Path, newest: str) -> None:
    """Keep within the limit."""
    kept = []
    for folder in base.iterdir():
        if folder.is_dir():
            nbytes = sum(file.stat().st_size for file in folder.iterdir())
            kept.append((folder.stat().st_mtime, nbytes, folder))
    total = sum(nbytes for _, nbytes, _ in kept)
    most = int(os.environ.get("TLKIT_CACHE_BYTES") or MOST_NBYTES)
    for _, nbytes, folder in sorted(kept):
        if total <= most:
            return
        if folder.name != newest:
            shutil.rmtree(folder, ignore_errors=True)
            total -= nbytes
