"""The build: setuptools, with additions to what it builds.

`tlkit_horovod.pth` makes `import horovod.torch` work wherever tlkit is installed and Horovod is not
(runtime/horovod/alias.py), with the help of `_tlkit_horovod.py`, a copy of runtime/horovod/hook.py.  Both have to lie in
site-packages itself, which setuptools has no option for, so they are added to the wheels that setuptools builds, normal and
editable, and to their list of files, so that uninstalling removes them.

README.md links to files of the repository by relative paths, which hold in every checkout and fork but not on PyPI.  If
TLKIT_REPOSITORY_URL and TLKIT_REPOSITORY_REF are set, as the release workflow sets them, the description in the metadata links to
these files at that address and tag, and the metadata names the address.
"""

import base64
import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # what a front end asks of a build
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

PTH_NAME = "tlkit_horovod.pth"
EDITABLE_NAME = "tlkit_editable.pth"
# One line, since site runs each line by itself.  Whatever goes wrong, an interpreter has to start.
PTH_LINE = "import sys; exec('try:\\n import _tlkit_horovod as h\\n h.install()\\nexcept Exception:\\n pass')\n"
HOOK_NAME = "_tlkit_horovod.py"
HOOK = Path("runtime", "horovod", "hook.py")
# A link or image of Markdown whose target is neither an address nor a heading of the page itself.
RELATIVE_LINK = re.compile(r"(?P<mark>!?)\[(?P<text>[^\]]*)\]\((?![a-z]+:|#|/)(?P<path>[^)\s]+)\)")


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel."""
    name = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    rewrite(Path(wheel_directory) / name, hook_files())
    return name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Build a source distribution, whose description has absolute links if the environment names the repository."""
    name = build_meta.build_sdist(sdist_directory, config_settings)
    if os.environ.get("TLKIT_REPOSITORY_URL"):
        rewrite_sdist(Path(sdist_directory) / name)
    return name


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel that points to this folder, by a line that type checkers understand as well.

    Setuptools would put a finder there, which runs, so that nobody who only reads knows where the package is; or the root of
    the repository, which would offer `timeline` and `runtime` to everybody.
    """
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    folder = Path.cwd() / "build" / "editable"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "tlkit"
    if not link.is_symlink():
        link.symlink_to(Path("..", "..", "tlkit"))
    rewrite(Path(wheel_directory) / name, {**hook_files(), EDITABLE_NAME: f"{folder}\n"}, without="__editable__")
    return name


def hook_files() -> dict[str, str]:
    """What belongs into site-packages itself: name and text."""
    return {PTH_NAME: PTH_LINE, HOOK_NAME: HOOK.read_text(encoding="utf-8")}


def rewrite(wheel: Path, added: Mapping[str, str], without: str = "\n") -> None:
    """Add files to a wheel, leave out those whose names begin with `without`, and finish its metadata; RECORD is kept in step."""
    scratch = wheel.with_suffix(".tmp")
    lines = [recorded(name, text.encode()) for name, text in added.items()]
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as target:
        for item in source.infolist():
            if item.filename.startswith(without):
                continue
            data = source.read(item)
            if item.filename.endswith(".dist-info/METADATA"):
                finished = finish_metadata(data.decode()).encode()
                if finished != data:
                    data = finished
                    lines.append(recorded(item.filename, data))
            elif item.filename.endswith(".dist-info/RECORD"):
                for name, text in added.items():
                    target.writestr(name, text)
                replaced = tuple(line.partition(",")[0] + "," for line in lines)
                kept = [
                    line
                    for line in data.decode().splitlines(keepends=True)
                    if not line.startswith((without, *replaced))
                ]
                data = "".join([*lines, *kept]).encode()
            target.writestr(item, data)
    scratch.replace(wheel)


def recorded(name: str, data: bytes) -> str:
    """The line of a file in RECORD, which stands at the end of a wheel."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def rewrite_sdist(sdist: Path) -> None:
    """Finish the metadata of a source distribution."""
    scratch = sdist.with_suffix(".tmp")
    with tarfile.open(sdist) as source, tarfile.open(scratch, "w:gz", format=tarfile.PAX_FORMAT) as target:
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if content is not None and Path(member.name).name == "PKG-INFO":
                data = finish_metadata(content.read().decode()).encode()
                member.size = len(data)
                content = io.BytesIO(data)
            target.addfile(member, content)
    scratch.replace(sdist)


def finish_metadata(metadata: str) -> str:
    """`metadata` with the repository's address in its header and in the links of its description, if the environment names it."""
    url = os.environ.get("TLKIT_REPOSITORY_URL", "").rstrip("/")
    if not url:
        return metadata
    ref = os.environ.get("TLKIT_REPOSITORY_REF") or "main"
    header, blank, description = metadata.partition("\n\n")
    addresses = {
        "Source": url,
        "Documentation": f"{url}/tree/{ref}/docs",
        "Changelog": f"{url}/blob/{ref}/CHANGELOG.md",
    }
    named = "".join(f"\nProject-URL: {label}, {address}" for label, address in addresses.items())
    return header + named + blank + absolute_links(description, url, ref)


def absolute_links(markdown: str, url: str, ref: str) -> str:
    """`markdown` with its relative links made absolute: images at `url`/raw/`ref`, all else at `url`/blob/`ref`."""
    return RELATIVE_LINK.sub(
        lambda link: f"{link['mark']}[{link['text']}]({url}/{'raw' if link['mark'] else 'blob'}/{ref}/{link['path']})",
        markdown,
    )


__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
