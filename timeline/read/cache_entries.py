"""The folders in which the cache keeps traces: which of them are its own, and which of those go.

`TLKIT_CACHE_DIR` may be any folder, with anything else in it.  An entry carries a mark, a file that names it and that only this
module writes; what has no mark is neither read nor removed.  Even of an entry only the files that the cache writes are removed,
so that what somebody has put beside them stays.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

#: In every entry: what made it, and a digest of its description.
MARK: Final = "tlkit-cache-entry"
DESCRIPTION: Final = "trace.json"
_KEY: Final = re.compile(r"[0-9a-f]{40}")
_SCRATCH: Final = ".writing-"
#: Earlier versions kept Parquet, which nobody reads any more, and which goes as the rest does.
_OWN_FILES: Final = re.compile(
    r"trace\.json|[a-z]+[0-9]*\.(?:arrow|parquet)|[0-9a-f]{40}\.(?:analysis|screen)(?:\.[0-9]+)?"
)
#: How the files end that hold what was made of a trace: their names are digests of all that it depends on.  Of an analysis there
#: may be several of one trace, of all ranks and of some, say; first screens are together in an entry of their own.
_ANALYSIS: Final = ".analysis"
_SCREEN: Final = ".screen"
_MAX_KEPT: Final = {_ANALYSIS: 4, _SCREEN: 32}
_SCREENS: Final = hashlib.blake2b(b"first screens", digest_size=20).hexdigest()
#: An entry that somebody has been writing for longer was given up.
_WRITING_S: Final = 24 * 3600

_log = logging.getLogger("tlkit.timeline")


def cache_folder() -> Path | None:
    """Where traces are kept: TLKIT_CACHE_DIR, else the user's cache folder; None if TLKIT_CACHE_DIR is empty."""
    chosen = os.environ.get("TLKIT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tlkit" / "traces"


def create(base: Path) -> Path:
    """A new folder for an entry, that only this user can read; `base` is made if it is not there.

    Raises:
        OSError: it cannot be made.
    """
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=base))
    _write(folder / MARK, b"")
    return folder


def touch(path: Path) -> Path:
    """Make a file that only this user can read; who writes to it then leaves that as it is."""
    _write(path, b"")
    return path


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def put_in_place(scratch: Path, target: Path, description: dict[str, Any]) -> None:
    """Finish an entry, and give it its name.

    Raises:
        OSError: it cannot be written, or its place is taken by something that is no entry.
    """
    content = json.dumps(description).encode()
    _write(scratch / DESCRIPTION, content)
    _write(scratch / MARK, _mark_of(content))
    try:
        scratch.rename(target)
    except OSError:
        remove(scratch)
        if not is_own(target):
            raise  # else another process was faster


def _mark_of(description: bytes) -> bytes:
    return b"tlkit.timeline.read.cache " + hashlib.blake2b(description, digest_size=20).hexdigest().encode()


def is_own(folder: Path) -> bool:
    """Whether a folder is an entry that this user's cache has made, whatever may have become of it."""
    if not (_KEY.fullmatch(folder.name) or folder.name.startswith(_SCRATCH)):
        return False
    try:
        found, mark = folder.lstat(), (folder / MARK).lstat()
    except OSError:
        return False
    return found.st_uid == mark.st_uid == os.geteuid() and folder.is_dir() and not folder.is_symlink()


def read_description(folder: Path) -> dict[str, Any]:
    """What an entry says of its trace.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not what was written.
    """
    content = (folder / DESCRIPTION).read_bytes()
    if (folder / MARK).read_bytes() != _mark_of(content):
        raise ValueError("the description is not the one that was written")
    described: dict[str, Any] = json.loads(content)
    return described


def add_analysis(folder: Path, name: str, content: bytes) -> None:
    """Keep beside a trace what was made of it; of several the newest stay.

    Args:
        name: 40 hexadecimal digits, a digest of all that it depends on.

    Raises:
        OSError: it cannot be written.
    """
    _add(folder, name, _ANALYSIS, content)


def read_analysis(folder: Path, name: str) -> bytes:
    """What `add_analysis` has kept.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is not what this user has written.
    """
    return _read(folder, f"{name}{_ANALYSIS}")


def add_screen(base: Path, name: str, content: bytes) -> None:
    """Keep the first screen of a run, in an entry of its own for all of them; the newest stay.

    Args:
        name: as for `add_analysis`.

    Raises:
        OSError: it cannot be written.
    """
    folder = base / _SCREENS
    if not is_own(folder):
        put_in_place(create(base), folder, {"holds": "first screens"})
    _add(folder, name, _SCREEN, content)


def read_screen(base: Path, name: str) -> bytes:
    """What `add_screen` has kept.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is not what this user has written.
    """
    folder = base / _SCREENS
    if not is_own(folder):
        raise FileNotFoundError(folder)
    content = _read(folder, f"{name}{_SCREEN}")
    os.utime(folder)  # when it was used last
    return content


def _add(folder: Path, name: str, ending: str, content: bytes) -> None:
    scratch = folder / f"{name}{ending}.{os.getpid()}"
    try:
        _write(scratch, hashlib.blake2b(content, digest_size=20).digest() + content)
        scratch.replace(folder / f"{name}{ending}")
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    found = sorted(folder.glob(f"*{ending}"), key=lambda path: -path.stat().st_mtime_ns)
    for path in found[_MAX_KEPT[ending] :]:
        path.unlink(missing_ok=True)


def _read(folder: Path, name: str) -> bytes:
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise ValueError("another user has written it")
        digest, content = file.read(20), file.read()
    if hashlib.blake2b(content, digest_size=20).digest() != digest:
        raise ValueError("it is not what was written")
    return content


def remove(folder: Path) -> None:
    """Remove an entry, and nothing that the cache has not written."""
    if not is_own(folder):
        return
    try:
        for path in folder.iterdir():
            if _OWN_FILES.fullmatch(path.name):
                path.unlink(missing_ok=True)
        if [path.name for path in folder.iterdir()] == [MARK]:
            # The mark goes last: whoever is stopped before it leaves an entry that can still be removed.
            (folder / MARK).unlink(missing_ok=True)
            folder.rmdir()
    except OSError as error:
        _log.debug("the entry %s cannot be removed: %s", folder, error)


def forget_oldest(base: Path, newest: str, most_nbytes: int, now_s: float) -> None:
    """Keep the entries within a limit; those that were not used for the longest time go first.

    Args:
        newest: name of the entry that stays, however large.
        now_s: the time of day, as that of files, which shows what was given up half written.
    """
    kept = []
    for folder in base.iterdir():
        if not is_own(folder):
            continue
        try:
            used_s = folder.stat().st_mtime
            nbytes = sum(path.stat().st_size for path in folder.iterdir())
        except OSError:  # another process was faster
            continue
        if not folder.name.startswith(_SCRATCH):
            kept.append((used_s, nbytes, folder))
        elif now_s - used_s > _WRITING_S:
            remove(folder)
    total = sum(nbytes for _, nbytes, _ in kept)
    for _, nbytes, folder in sorted(kept):
        if total <= most_nbytes:
            return
        if folder.name != newest:
            remove(folder)
            total -= nbytes
