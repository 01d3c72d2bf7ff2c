"""Arguments that all servers share: the token, and the certificate."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ...timeline.errors import UsageError

_LONGEST_TOKEN: Final = 4096
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


def add_token(add: Callable[..., Any], purpose: str) -> None:
    """The token: a file keeps it from the list of processes, which every user of the machine can read."""
    add("--token-file", metavar="FILE", help="file that contains the token")
    add("--token", help=f"{purpose}; visible to other users of this machine")


def add_certificate(add: Callable[..., Any]) -> None:
    """What https needs."""
    add("--certfile", metavar="FILE", help="serve https with this certificate (PEM)")
    add("--keyfile", metavar="FILE", help="the certificate's key (default: in the same file)")


def certificate_of(arguments: argparse.Namespace) -> tuple[str, str | None] | None:
    """The files to serve https with; None for http.

    Raises:
        UsageError: a key without a certificate.
    """
    if arguments.certfile is None and arguments.keyfile is not None:
        raise UsageError("--keyfile needs --certfile")
    return None if arguments.certfile is None else (arguments.certfile, arguments.keyfile)


def read_token(file: str | None, otherwise: str | None) -> str | None:
    """A token from a file, which keeps it from the list of processes, which every user can read; else `otherwise`.

    Raises:
        UsageError: the file cannot be read, or contains no token.
    """
    token = otherwise
    if file is not None:
        try:
            with Path(file).open(encoding="utf-8") as opened:
                token = opened.read(_LONGEST_TOKEN + 1).strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"the token in {file} cannot be read: {error}") from error
        if not token:
            raise UsageError(f"no token in {file}")
    if token and (len(token) > _LONGEST_TOKEN or not _TOKEN.fullmatch(token)):
        raise UsageError("a token is one word of visible ASCII characters, at most 4096")
    return token or None
