"""Who asked for a collective."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Who asked for a collective.  One object for all calls alike, so that comparing and hashing cost nothing."""

    caller: str
    """One of vocabulary.CALLERS; "" if unknown."""
    blocking: bool
    """Whether the calling thread waits in the call itself."""
    where: str = ""
    """The user's line, as `train.py:12`; "" where it does not matter or is unknown."""


UNKNOWN_CALL: Final = Call("", blocking=False)
