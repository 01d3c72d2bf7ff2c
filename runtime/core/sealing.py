"""Objects travel as pickles, over connections that prove nothing: a seal says that a rank of the job has made them."""

import hmac
from typing import Final

from .errors import HorovodInternalError

SEAL_NBYTES: Final = 32


class Seal:
    """Marks bytes, and knows its mark again.  The key is the job's, made anew at each start."""

    def __init__(self, key: bytes) -> None:
        """Use this key, which all ranks have."""
        self._key = key

    def close(self, payload: bytes) -> bytes:
        """The payload with the seal before it."""
        return hmac.digest(self._key, payload, "sha256") + payload

    def open(self, sealed: bytes | memoryview) -> memoryview:
        """The payload.

        Raises:
            HorovodInternalError: no rank of this job has made it.
        """
        view = memoryview(sealed)
        mark, payload = view[:SEAL_NBYTES], view[SEAL_NBYTES:]
        if not hmac.compare_digest(mark, hmac.digest(self._key, payload, "sha256")):
            raise HorovodInternalError(
                "an object from another rank does not carry the seal of this job: it was damaged in transit, or comes from "
                "outside the job"
            )
        return payload
