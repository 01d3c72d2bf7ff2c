"""Traces that lie elsewhere, under any URL that fsspec knows: they are copied here, once."""

import atexit
import contextlib
import hashlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ..errors import TraceError, TraceNotFoundError
from .cache_entries import cache_folder

_TRACE = re.compile(r"\.(json|sqlite|trace)(\.gz|\.zst)?$", re.IGNORECASE)


def fetch(url: str) -> list[Path]:
    """Copy what a URL means to this machine: a file with the other ranks' files beside it, a folder, or a pattern.

    A file that was copied before and has not changed is not copied again.

    Raises:
        TraceNotFoundError: nothing is there.
        TraceError: it cannot be read, or fsspec or its driver for this kind of URL is not installed.
    """
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415  an option
    except ImportError:
        raise TraceError(f"{url}: to read from elsewhere takes fsspec: pip install 'tlkit[remote]'") from None
    try:
        filesystem, path = url_to_fs(url)
        names = _meant(filesystem, path)
        if not names:
            raise TraceNotFoundError(f"{url}: no trace is there")
        return [_copy(filesystem, name) for name in names]
    except FileNotFoundError:
        raise TraceNotFoundError(f"{url}: no such file") from None
    except TraceError:
        raise
    except ImportError as error:
        raise TraceError(f"{url}: {error}") from error
    except Exception as error:  # each driver has errors of its own
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"cannot read {url}: {said}") from error


def _meant(filesystem: Any, path: str) -> list[str]:
    """The files that a path means."""
    if any(character in path for character in "*?["):
        return sorted(name for name in filesystem.glob(path) if not filesystem.isdir(name))
    if not _TRACE.search(path) and filesystem.isdir(path):
        return sorted(
            entry["name"]
            for entry in filesystem.ls(path, detail=True)
            if entry["type"] == "file" and _TRACE.search(entry["name"])
        )
    filesystem.info(path)  # raises if it is not there
    # A timeline of rank 0 alone means those of the other ranks, too.
    folder, _, name = path.rpartition("/")
    stem, dot, suffix = name.partition(".json")
    others: list[str] = []
    if dot:
        pattern = re.compile(re.escape(stem) + r"\.rank\d+" + re.escape(dot + suffix) + "$")
        # A server may not list its folders.
        with contextlib.suppress(Exception):
            others = [entry for entry in filesystem.ls(folder, detail=False) if pattern.search(str(entry))]
    return [path, *sorted(others)]


def _copy(filesystem: Any, path: str) -> Path:
    name = path.rstrip("/").rpartition("/")[2] or "trace"
    # Size, time of the last change, tag: whatever this kind of URL tells of a file.
    version = sorted((str(key), str(value)) for key, value in filesystem.info(path).items())
    key = hashlib.blake2b(f"{filesystem.protocol} {path} {version}".encode(), digest_size=12).hexdigest()
    folder = _base() / key
    target = folder / name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        scratch = folder / f".{name}.writing"
        filesystem.get_file(path, str(scratch))
        scratch.replace(target)
    return target


_temporary: list[Path] = []


def _base() -> Path:
    """Beside the kept traces; a temporary folder where nothing is kept."""
    kept = cache_folder()
    if kept is not None:
        return kept.with_name("remote")
    if not _temporary:
        _temporary.append(Path(tempfile.mkdtemp(prefix="tlkit-")))
        atexit.register(shutil.rmtree, _temporary[0], ignore_errors=True)
    return _temporary[0]
