"""What scripts import from `horovod.runner.common.util.secret`."""

import hmac
import secrets
from typing import Final

HOROVOD_SECRET_KEY: Final = "_HOROVOD_SECRET_KEY"  # noqa: S105  a variable's name
DIGEST_LENGTH: Final = 32


def make_secret_key() -> bytes:
    """A new key."""
    return secrets.token_bytes(DIGEST_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """The authentication code of a message, which only owners of the key can compute."""
    return hmac.digest(key, message, "sha256")


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Whether the authentication code of a message is valid."""
    return hmac.compare_digest(digest, compute_digest(key, message))
