"""Asks a collector: the network may fail at any point, and what answers may be anything.

There are two kinds of failure.  Whatever may be over in a moment is an `OSError`: no connection, half an answer, a collector that
says it fails or is full.  Whatever will not change by itself is a `UsageError`.
"""

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from ...timeline.errors import UsageError

_TIMEOUT_S: Final = 35.0
#: Bytes of an answer; pieces of shards have up to 8 MiB.
_MAX_NBYTES: Final = 64 * 1024 * 1024
#: Statuses that are answers.
_ANSWERS: Final = {200, 202, 404, 409, 412}
#: Others below 500 that may be over in a moment: too slow, too early, too many.
_PASSING: Final = {408, 425, 429}


class WaitError(OSError):
    """The collector cannot do it now, and says why."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Nobody else is to be told the token."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class Client:
    """A collector at an address."""

    def __init__(self, url: str, token: str, flag: str) -> None:
        """Prepare.

        Args:
            url: of the collector, `http://host:port` or `https://…`.
            token: the collector's.
            flag: the argument that `url` comes from.

        Raises:
            UsageError: `url` is none.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            raise UsageError(f"{flag} {url}: the address of a collector is needed, as http://host:8060")
        self.url, self._token = url.rstrip("/"), token
        self._opener = urllib.request.build_opener(_NoRedirect)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
        """Status and answer.

        Raises:
            OSError: it does not answer, or not now.
            UsageError: it refuses, or is no collector.
        """
        status, content = self.fetch(method, path, body)
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            return status, answer
        if not content or (content.lstrip()[:1] == b"{" and len(content) < _MAX_NBYTES):
            raise WaitError("half an answer came")
        raise UsageError(f"what answers at {self.url} is no collector")

    def fetch(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and content of an answer.

        Raises:
            OSError: it does not answer, or not now.
            UsageError: it refuses.
        """
        request = urllib.request.Request(self.url + path, data=body, method=method)  # noqa: S310  http or https, see above
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", "application/octet-stream")
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return int(answer.status), bytes(answer.read(_MAX_NBYTES))
        except urllib.error.HTTPError as error:
            return self._failed(error)
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise UsageError(
                    f"the certificate of {self.url} is not trusted: {error.reason.verify_message}; SSL_CERT_FILE names others"
                ) from error
            raise WaitError(f"the collector at {self.url} does not answer: {error.reason}") from error
        except (http.client.HTTPException, OSError) as error:
            raise WaitError(f"the collector at {self.url} does not answer: {error or type(error).__name__}") from error

    def _failed(self, error: urllib.error.HTTPError) -> tuple[int, bytes]:
        with error:
            try:
                said = error.read(10_000)
            except (http.client.HTTPException, OSError) as broken:
                raise WaitError(f"the collector at {self.url} does not answer: {broken}") from broken
        if error.code in _ANSWERS:
            return error.code, said
        try:
            reason = str(json.loads(said)["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            reason = str(error.reason)
        if error.code >= 500 or error.code in _PASSING:  # noqa: PLR2004  it may recover
            raise WaitError(f"{reason} ({error.code})")
        raise UsageError(f"the collector at {self.url} refuses: {reason} ({error.code})")
