"""The part of a shard that is looked at while it grows: its metadata, and whole lines of its end."""

import os
import re
from pathlib import Path
from typing import Final

from ...timeline.record.sampled_format import STEPS_EVENT

#: Bytes at the beginning within which the metadata lies.
HEAD_NBYTES: Final = 256 * 1024
_METADATA: Final = re.compile(rb'"ph": ?"M"')
_SUMS: Final = STEPS_EVENT.encode()


def copy_window(path: Path, size: int, target: Path, window_nbytes: int) -> int:
    """Copy the metadata of a shard and whole lines of its end.

    Args:
        size: of the shard as it is looked at.
        window_nbytes: of its end.

    Returns:
        The shard's inode.
    """
    with path.open("rb") as file, target.open("wb") as out:
        head = file.read(HEAD_NBYTES)
        lines = head.split(b"\n")
        metadata = 0
        for line in lines[:-1]:
            if line.strip() not in {b"[", b""} and (_SUMS in line or not _METADATA.search(line)):
                break
            metadata += len(line) + 1
        out.write(head[:metadata])
        begin = max(size - window_nbytes, metadata)
        file.seek(begin)
        if begin > metadata:
            file.readline()
        left = size - file.tell()
        while left > 0:
            block = file.read(min(left, 1 << 20))
            if not block:
                break
            out.write(block)
            left -= len(block)
        return os.fstat(file.fileno()).st_ino
