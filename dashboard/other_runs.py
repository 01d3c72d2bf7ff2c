"""Runs to compare with: those that were named when the server was started, and those in a folder that was."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..timeline.commands.arguments import clean

if TYPE_CHECKING:
    from ..collector.analysis import Analysis

#: Analyses that are kept.
MAX_KEPT: Final = 4
MAX_RUNS: Final = 200


class OtherRuns:
    """Runs by name.  A browser names one of them, and never a path.  Safe to use from several threads."""

    def __init__(self, paths: Sequence[str], folder: Path | None) -> None:
        """Offer runs; nothing is read yet.

        Args:
            paths: traces that were named.
            folder: whose files and folders are runs; those that come later are found, too.
        """
        self._named = dict(zip(_names_of(paths), paths, strict=True))
        self._folder = folder
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, Analysis]] = OrderedDict()

    def names(self) -> tuple[str, ...]:
        """Those that were named, then those of the folder, newest first."""
        return (*self._named, *(name for name in self._in_folder() if name not in self._named))

    def analysis(self, name: str) -> "Analysis":
        """The analysis of a run; made anew when the run has grown.

        Raises:
            LookupError: there is no such run.
            TlkitError: it cannot be read.
        """
        from ..collector.apart import analyze_apart  # noqa: PLC0415  the server answers before it is loaded

        path = self._named.get(name) or self._in_folder().get(name)
        if path is None:
            raise LookupError(f"there is no run {clean(name)!r} here")
        stamp = _changed_ns(Path(path))
        with self._lock:
            found = self._kept.get(name)
            if found is None or found[0] != stamp:
                found = (stamp, analyze_apart(path))
                self._kept[name] = found
            self._kept.move_to_end(name)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return found[1]

    def _in_folder(self) -> dict[str, str]:
        if self._folder is None or not self._folder.is_dir():
            return {}
        entries = [entry for entry in self._folder.iterdir() if not entry.name.startswith(".") and _is_run(entry)]
        entries.sort(key=lambda entry: (-_changed_ns(entry), entry.name))
        return {entry.name: str(entry) for entry in entries[:MAX_RUNS]}


def _is_run(entry: Path) -> bool:
    """A folder with files in it, or the file of a rank 0."""
    if entry.is_dir():
        return any(child.is_file() for child in entry.iterdir())
    return ".rank" not in entry.name and entry.name.endswith((".json", ".json.gz", ".json.zst", ".sqlite"))


def _changed_ns(path: Path) -> int:
    try:
        inside = [child.stat().st_mtime_ns for child in path.iterdir()] if path.is_dir() else []
        return max([path.stat().st_mtime_ns, *inside])
    except OSError:  # a pattern, a URL, or gone meanwhile
        return 0


def _names_of(paths: Sequence[str]) -> list[str]:
    """File names; whole paths where they are the same."""
    short = [Path(path).name or path for path in paths]
    return [name if short.count(name) == 1 else path for name, path in zip(short, paths, strict=True)]
