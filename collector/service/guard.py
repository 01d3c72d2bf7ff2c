"""Who may look: the machine itself, or whoever has the token.

Pages are served to 127.0.0.1 unless told otherwise.  A request has to name a host that is ours (else another web site could
have its own name point here and read along), and one that changes something has to come from our own pages.  Beyond the machine
a token is needed, once in the address and from then on as a cookie that scripts cannot read.
"""

import hmac
import ipaddress
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from flask import Flask, Response, abort, redirect, request

COOKIE: Final = "tlkit_token"
#: Largest body of a request, bytes.
MOST_NBYTES: Final = 1024 * 1024


def is_loopback(host: str) -> bool:
    """Whether an address is the machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def protect(
    server: Flask, *, host: str, token: str | None, script_hashes: Sequence[str] = (), most_nbytes: int = MOST_NBYTES
) -> None:
    """Have every request checked, and every answer say what a browser may do with it.

    Args:
        host: the address that is listened at.
        token: what a request needs; None to need none, which is for loopback.
        most_nbytes: largest body of a request.
        script_hashes: of scripts inside the page, as a content security policy writes them.
    """
    names = {"localhost", "127.0.0.1", "[::1]", "::1", host}
    any_name = token is not None and not is_loopback(host)
    server.config["MAX_CONTENT_LENGTH"] = most_nbytes
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
        name = urlsplit(f"//{request.host}").hostname or ""
        if not any_name and name not in names:
            abort(421, description="this address is not served here")
        origin = request.headers.get("Origin")
        if request.method not in {"GET", "HEAD"} and origin and urlsplit(origin).netloc != request.host:
            abort(403, description="the request comes from another site")
        return None if token is None else _check_token(token)

    @server.after_request
    def harden(response: Response) -> Response:
        response.headers.setdefault("Content-Security-Policy", policy)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Frame-Options"] = "DENY"
        return response


def _check_token(token: str) -> Any:
    """None if the request may go on; a redirect that leaves the token out of the address; else 401."""
    given = request.args.get("token", "")
    if given and hmac.compare_digest(given.encode(), token.encode()):
        answer = redirect(request.path or "/")
        answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
        return answer
    said = request.cookies.get(COOKIE, "") or request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(said.encode(), token.encode()):
        abort(401, description="a token is needed: open the address that tl-dash printed")
    return None
