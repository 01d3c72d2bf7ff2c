"""Which files may belong to a trace, by names alone: whoever only has to know whether any of them has changed reads none."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SHARD: Final = re.compile(
    r"^(?P<stem>.*?)(?:\.rank(?P<rank>\d+)|\.part(?P<part>\d+)|\.rank\d+\.part\d+)(?P<suffix>(?:\.[^.]*)?(?:\.gz)?)$"
)


def is_url(text: str) -> bool:
    """Whether this names something elsewhere; `file://` as well."""
    return _URL.match(text) is not None


@dataclass(frozen=True, slots=True)
class Family:
    """The names that the shards of one run have in a folder."""

    folder: Path
    stem: str
    suffix: str

    def files(self) -> list[Path]:
        """What is there under such a name, whatever is in it."""
        endings = {self.suffix, self.suffix.removesuffix(".gz"), self.suffix.removesuffix(".gz") + ".gz"}
        first = {self.stem + ending for ending in endings}
        found = []
        for child in self.folder.iterdir():
            match = _SHARD.match(child.name)
            is_other = match is not None and match["stem"] == self.stem and match["suffix"] in endings
            if (child.name in first or is_other) and child.is_file():
                found.append(child)
        return found


def family_of(path: Path) -> Family:
    """The family that a shard is of.

    >>> family_of(Path("runs/t.rank3.json.gz")) == family_of(Path("runs/t.json.gz"))
    True
    """
    match = _SHARD.match(path.name)
    if match:
        return Family(path.parent, match["stem"], match["suffix"])
    stem, dot, suffix = path.name.partition(".json")
    if not dot:
        stem, suffix = path.stem, path.suffix
    return Family(path.parent, stem, dot + suffix)


def visible_files(folder: Path) -> list[Path]:
    """The files in a folder, in order, without hidden ones.

    Raises:
        OSError: it cannot be listed.
    """
    return sorted(child for child in folder.iterdir() if child.is_file() and not child.name.startswith("."))


def possible_files(given: Sequence[str]) -> list[Path] | None:
    """The files that `open_trace` may read, and more; None where names alone do not say which.

    Args:
        given: files, folders and patterns, as `open_trace` takes them.
    """
    found: list[Path] = []
    try:
        for item in given:
            path = Path(item)
            if is_url(item):
                return None
            if path.is_dir():
                found += visible_files(path)
            elif path.exists():
                found += [path, *family_of(path).files()]
            else:
                found += map(Path, glob.glob(item, recursive=True))  # noqa: PTH207  any pattern
    except OSError:
        return None
    return sorted({Path(os.path.abspath(path)) for path in found}) or None  # noqa: PTH100  links stay what they are called
