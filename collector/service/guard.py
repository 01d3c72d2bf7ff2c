"""Who may look: the machine itself, or whoever has the token.

Pages are served to 127.0.0.1 unless told otherwise.  A request has to name a host that is ours (else another web site could
have its own name point here and read along), and one that changes something has to come from our own pages.  Beyond the machine
a token is needed: `Authorization: Bearer TOKEN`, or for pages once in the address and from then on a cookie that scripts cannot
read.  All of it is looked at before the body of a request is (`bridge.py`).
"""

import hmac
import ipaddress
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from flask import Flask, Response, abort, redirect, request
from werkzeug.wrappers import Request

#: Largest body of a request, bytes.
MAX_NBYTES: Final = 1024 * 1024


def is_loopback(host: str) -> bool:
    """Whether an address is the machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gate:
    """Whether a request may go on."""

    def __init__(self, *, host: str, token: str | None, cookie: str | None) -> None:
        """Prepare.

        Args:
            host: the address that is listened at.
            token: what a request needs; None to need none, which is for loopback.
            cookie: name of the cookie that may hold the token; None if the header has to.
        """
        self._names = {"localhost", "127.0.0.1", "[::1]", "::1", host}
        self._any_name = token is not None and not is_loopback(host)
        self._token, self._cookie = token, cookie

    def check(self, asked: Request) -> Any:
        """None if the request may go on; a redirect that leaves the token out of the address.

        Raises:
            HTTPException: it may not.
        """
        try:
            name = urlsplit(f"//{asked.host}").hostname or ""
        except ValueError:
            name = ""
        if not self._any_name and name not in self._names:
            abort(421, description="this host name is not served here")
        origin = asked.headers.get("Origin")
        if asked.method not in {"GET", "HEAD"} and origin and not _is_same(origin, asked.host):
            abort(403, description="the request comes from another site")
        return None if self._token is None else self._check_token(asked, self._token)

    def _check_token(self, asked: Request, token: str) -> Any:
        kind, _, said = asked.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and _are_equal(said.strip(), token):
            return None
        if self._cookie is None:
            abort(401, description="a token is needed: the header Authorization: Bearer TOKEN")
        # Browsers send a cookie to all ports of a host: each server has its own.
        cookie = f"{self._cookie}_{_port_of(asked)}"
        if _are_equal(asked.args.get("token", ""), token):
            answer = redirect(_without_token(asked))
            answer.set_cookie(cookie, token, httponly=True, samesite="Strict", secure=asked.is_secure)
            return answer
        if not _are_equal(asked.cookies.get(cookie, ""), token):
            abort(401, description="a token is needed: open the address with ?token=…")
        return None


def _without_token(asked: Request) -> str:
    rest = [(key, value) for key, value in asked.args.items(multi=True) if key != "token"]
    path = "/" + asked.path.lstrip("/\\")  # two slashes would name another host
    return path + ("?" + urlencode(rest) if rest else "")


def _port_of(asked: Request) -> int:
    try:
        return urlsplit(f"//{asked.host}").port or 0
    except ValueError:
        return 0


def _are_equal(said: str, token: str) -> bool:
    return hmac.compare_digest(said.encode("utf-8", "replace"), token.encode())


def _is_same(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def protect(
    server: Flask,
    *,
    host: str,
    token: str | None,
    cookie: str | None = None,
    script_hashes: Sequence[str] = (),
    most_nbytes: int = MAX_NBYTES,
) -> None:
    """Have every request checked, and every answer say what a browser may do with it.

    Args:
        host: the address that is listened at.
        token: what a request needs; None to need none, which is for loopback.
        cookie: name of the cookie that may hold the token; None if there are no pages.
        most_nbytes: largest body of a request.
        script_hashes: of scripts inside the page, as a content security policy writes them.
    """
    gate = Gate(host=host, token=token, cookie=cookie)
    server.config["MAX_CONTENT_LENGTH"] = most_nbytes
    server.extensions["tlkit_gate"] = gate
    policy = "; ".join(
        (
            "default-src 'self'",
            "script-src 'self' " + " ".join(script_hashes),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "object-src 'none'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "form-action 'self'",
        )
    )

    @server.before_request
    def check() -> Any:
        return gate.check(request)

    @server.after_request
    def harden(response: Response) -> Response:
        response.headers.setdefault("Content-Security-Policy", policy)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Frame-Options"] = "DENY"
        return response
