"""What tells one run's bytes from another's, at both ends of the wire.

A run of ours has an id, which every shard names in its first line.  Shards of other tools have none; of these, and of ours as
well, every piece says what comes before it, so that only bytes that belong together are ever put together.
"""

import hashlib
import re
from typing import Final

#: Bytes at the beginning of a shard within which it names its run.
HEAD_NBYTES: Final = 4096
#: Bytes before a piece that have to be the same at both ends.
BEFORE_NBYTES: Final = 4096
RUN_ID: Final = re.compile(r"[0-9a-f]{1,32}")
_IN_HEAD: Final = re.compile(rb'"run_id": ?"([0-9a-f]{1,32})"')


def run_id_in(head: bytes) -> str:
    """The id of the run that a shard with this beginning belongs to; "" if it names none (yet)."""
    found = _IN_HEAD.search(head[:HEAD_NBYTES])
    return found[1].decode() if found else ""


def digest_of(content: bytes) -> str:
    """A short digest of bytes."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def start_of_before(offset: int) -> int:
    """Where what has to be the same begins, for a piece at `offset`."""
    return max(offset - BEFORE_NBYTES, 0)
