"""The build: setuptools, and one file more in the wheel.

`tlkit_horovod.pth` makes `import horovod.torch` work wherever tlkit is installed and Horovod is not
(runtime/horovod/alias.py).  It has to lie in site-packages itself, which setuptools has no option for, so it is added to
the wheels that setuptools builds, normal and editable, and to their list of files, so that uninstalling removes it.
"""

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # what a front end asks of a build
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

PTH_NAME = "tlkit_horovod.pth"
EDITABLE_NAME = "tlkit_editable.pth"
# One line, since site runs each line by itself.  Whatever goes wrong, an interpreter has to start.
PTH_LINE = (
    "import sys; exec('try:\\n import tlkit.runtime.horovod.hook as h\\n h.install()\\nexcept Exception:\\n pass')\n"
)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel."""
    name = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    add_pth(Path(wheel_directory) / name)
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
    rewrite(Path(wheel_directory) / name, {PTH_NAME: PTH_LINE, EDITABLE_NAME: f"{folder}\n"}, without="__editable__")
    return name


def add_pth(wheel: Path) -> None:
    """Add the `.pth` file to `wheel` and to its RECORD."""
    rewrite(wheel, {PTH_NAME: PTH_LINE})


def rewrite(wheel: Path, added: Mapping[str, str], without: str = "\n") -> None:
    """Put files into a wheel and leave out those whose names begin with `without`; its RECORD says so."""
    scratch = wheel.with_suffix(".tmp")
    lines = []
    for name, text in added.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text.encode())}\n")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as target:
        for item in source.infolist():
            if item.filename.startswith(without):
                continue
            data = source.read(item)
            if item.filename.endswith(".dist-info/RECORD"):
                for name, text in added.items():
                    target.writestr(name, text)
                kept = [line for line in data.decode().splitlines(keepends=True) if not line.startswith(without)]
                data = "".join([*lines, *kept]).encode()
            target.writestr(item, data)
    scratch.replace(wheel)


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
