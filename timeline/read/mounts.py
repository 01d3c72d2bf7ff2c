"""Which folders lie on a file system of this machine alone."""

import re
from pathlib import Path
from typing import Final

#: Nobody but this machine can take a file from these while it is open; NFS, FUSE and what is not listed belong to others, too.
_LOCAL: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
_MOUNTS: Final = Path("/proc/self/mountinfo")
#: How the kernel writes spaces and the like in names.
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def is_local(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether the files of a folder stay as long as they are open; False where that is not known.

    Args:
        folder: which is there.
        mounts: the kernel's list.
    """
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
        place = folder.resolve(strict=True)
    except OSError:
        return False
    best, kind = -1, ""
    for line in lines:
        # number, parent, device, root, mount point, options …, "-", kind of file system, …
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:  # noqa: PLR2004
            continue
        point = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        # Of several at one place the last one hides the others.
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind in _LOCAL
