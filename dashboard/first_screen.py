"""First screens that are kept: a run that was opened before shows its verdict before its tables are loaded.

What is kept is what the page itself has once sent: the header, the navigation, and the parts of the page as Dash writes them.  It
is found under a digest of all that it depends on: the files that the run may consist of, their sizes and when they changed, what
the user has selected, the code of this package, and the packages that it draws on.  When the run has been loaded, the page is
made as always, and whatever of it is not as it was kept is sent again (blocks.py): a screen that should not be there is gone in
a moment.
"""

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ..timeline.read import cache_entries
from ..timeline.read.families import possible_files

if TYPE_CHECKING:
    from ..collector.analysis import Analysis

#: Themes that a page is drawn in.
THEMES: Final = ("light", "dark")
#: Packages that a page depends on.
_PACKAGES: Final = ("dash", "numpy", "pandas", "plotly", "pyarrow")
#: Readers and rules of other packages: whoever writes one changes it and looks again.
_EXTENSIONS: Final = ("tlkit.formats", "tlkit.rules")
#: A file that was changed less than this ago may change again without its times showing it.
_RACY_NS: Final = 20_000_000
#: Beside timelines that a flight recorder has set aside: why.
_BESIDE: Final = "why.json"

_log = logging.getLogger("tlkit.dashboard")


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstScreen:
    """What a visitor sees first of a run that was opened before."""

    run: str
    """The header's words."""
    pages: tuple[str, ...]
    """Names of the pages that have something to show of this run alone."""
    files: tuple[str, ...]
    """Paths of the files of the run."""
    blocks: Mapping[str, list[Any]]
    """By theme the parts of the page, as Dash writes components."""

    def to_bytes(self) -> bytes:
        """As JSON."""
        described = {"run": self.run, "pages": self.pages, "files": self.files, "blocks": dict(self.blocks)}
        return json.dumps(described).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """What `to_bytes` has written.

        Raises:
            ValueError: it is something else.
        """
        found = json.loads(content)
        if not isinstance(found, dict) or found.keys() != {"run", "pages", "files", "blocks"}:
            raise ValueError("no first screen")
        run, pages, files, blocks = (found[name] for name in ("run", "pages", "files", "blocks"))
        if not (isinstance(run, str) and _are_texts(pages) and _are_texts(files) and isinstance(blocks, dict)):
            raise ValueError("no first screen")
        if blocks.keys() != set(THEMES) or not all(isinstance(blocks[theme], list) for theme in THEMES):
            raise ValueError("no blocks")
        return cls(run=run, pages=tuple(pages), files=tuple(files), blocks=blocks)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


class KeptScreen:
    """The place in which the first screen of one run is kept."""

    def __init__(self, given: Sequence[str], *, ranks: Sequence[int] | None, warm_up: int | None) -> None:
        """Find the place, before anything of the run is read.

        Args:
            given: the run, as `open_trace` takes it.
            ranks: as `analyze_kept` takes them.
            warm_up: also.
        """
        self._given = list(given)
        self._selected = (None if ranks is None else sorted(set(ranks)), warm_up)
        self._files: list[Path] = []
        self._name = self._find()

    def load(self) -> FirstScreen | None:
        """What is kept; None if nothing is, or cannot be read."""
        base = cache_entries.cache_folder()
        if base is None or self._name is None:
            return None
        try:
            return FirstScreen.from_bytes(cache_entries.read_screen(base, self._name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:  # the run can be opened without it
            _log.debug("the kept screen %s cannot be read: %r", self._name, error)
            return None

    def store(self, screen: FirstScreen, analysis: "Analysis") -> None:
        """Keep a screen, unless it may be another one the next time.  Failures are logged and have no other effect."""
        base = cache_entries.cache_folder()
        if base is None or self._name is None or analysis.condition.ending == "running":
            return
        known = set(map(str, self._files))
        if not all(os.path.abspath(file) in known for file in screen.files) or self._find() != self._name:  # noqa: PTH100
            return
        content = screen.to_bytes()
        try:
            cache_entries.add_screen(base, self._name, content)
        except OSError as error:
            _log.warning("the first screen is not kept in %s: %s", base, error)

    def _find(self) -> str | None:
        """The name of all that the screen depends on; None if that cannot be said."""
        if any(entry_points(group=group) for group in _EXTENSIONS):
            return None
        files = possible_files(self._given)
        if files is None:
            return None
        self._files = files
        beside = sorted({file.parent / _BESIDE for file in files})
        try:
            found = [_stamp(file) for file in files]
            found += [_stamp(file) for file in beside if file.exists()]
            described = (_code(), self._given, self._selected, found)
        except OSError:
            return None
        if any(0 <= time.time_ns() - stamp[-1] < _RACY_NS for stamp in found):
            return None
        return hashlib.blake2b(repr(described).encode(), digest_size=20).hexdigest()


def _stamp(file: Path) -> tuple[Any, ...]:
    """What tells a file from what it was before: its date can be set back, the time of its inode's last change cannot."""
    found = file.stat()
    return str(file), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _code() -> str:
    """Of the code that reads, analyses and draws."""
    package = Path(__file__).resolve().parents[1]
    described: list[object] = [sys.version]
    for name in _PACKAGES:
        try:
            described.append((name, version(name)))
        except PackageNotFoundError:
            described.append((name, ""))
    for folder in ("timeline", "collector", "dashboard"):
        for path in sorted((package / folder).rglob("*.*")):
            if path.suffix in {".py", ".so"}:
                found = path.stat()
                described.append((path.name, found.st_size, found.st_mtime_ns))
    return hashlib.blake2b(repr(described).encode(), digest_size=20).hexdigest()
