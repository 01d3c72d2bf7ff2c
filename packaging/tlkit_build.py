"""The build: setuptools, and one file more in the wheel.

`tlkit_horovod.pth` makes `import horovod.torch` work wherever tlkit is installed and Horovod is not
(runtime/horovod/alias.py).  It has to lie in site-packages itself, which setuptools has no option for, so it is added to
the wheels that setuptools builds, normal and editable, and to their list of files, so that uninstalling removes it.
"""

import base64
import hashlib
import zipfile
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
    """Build a wheel that points to this folder."""
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    add_pth(Path(wheel_directory) / name)
    return name


def add_pth(wheel: Path) -> None:
    """Add the `.pth` file to `wheel` and to its RECORD."""
    scratch = wheel.with_suffix(".tmp")
    content = PTH_LINE.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as target:
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith(".dist-info/RECORD"):
                target.writestr(PTH_NAME, content)
                data = f"{PTH_NAME},sha256={digest},{len(content)}\n".encode() + data
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
