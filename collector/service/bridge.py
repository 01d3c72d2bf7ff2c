"""Between the server, which is asynchronous, and the application, which is not.

The body of a request is taken only when its header has been let through, up to a limit, within a time, and as long as all bodies
together leave room; then a thread of the application answers.  So nobody without a token can have anything kept, and nobody who
sends slowly holds a thread.
"""

import asyncio
import contextlib
import io
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from flask import Flask
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Request

from .guard import Gate

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: A page asks for its figures and views side by side.
THREADS: Final = 8
#: A body has to arrive within this time.
BODY_S: Final = 30.0
#: Bodies in memory, all requests together.
MAX_BODIES_NBYTES: Final = 256 * 1024 * 1024


class _NotTakenError(Exception):
    """A body that is not taken; the status and the reason."""


class Bridge:
    """A Flask application as ASGI."""

    def __init__(self, server: Flask) -> None:
        """Serve `server`, which `guard.protect` has prepared."""
        self._server = server
        self._gate: Gate = server.extensions["tlkit_gate"]
        self._most_nbytes: int = server.config["MAX_CONTENT_LENGTH"]
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tlkit-answer")
        self._held_nbytes = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        environ = _environ_of(scope)
        body = b""
        try:
            if self._takes_body(environ):
                body = await self._read(receive)
                environ["CONTENT_LENGTH"] = str(len(body))
        except _NotTakenError as error:
            await self._refuse(receive, send, *error.args)
            return
        try:
            environ["wsgi.input"] = io.BytesIO(body)
            loop = asyncio.get_running_loop()
            status, headers, content = await loop.run_in_executor(self._threads, _answer, self._server, environ)
        finally:
            self._held_nbytes -= len(body)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def close(self) -> None:
        """Answer nobody any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _takes_body(self, environ: dict[str, Any]) -> bool:
        """Whether the application is to have the body; if not, it says why from the header alone.

        Raises:
            _NotTakenError: it is too large.
        """
        length = environ.get("CONTENT_LENGTH", "")
        is_chunked = "HTTP_TRANSFER_ENCODING" in environ
        if environ["REQUEST_METHOD"] in {"GET", "HEAD"} or not (length or is_chunked):
            environ.pop("CONTENT_LENGTH", None)
            return False
        try:
            allowed = self._gate.check(Request(environ)) is None
        except HTTPException:
            allowed = False
        if allowed and not is_chunked and int(length) > self._most_nbytes:
            raise _NotTakenError(413, f"a body has at most {self._most_nbytes} bytes")
        return allowed

    async def _read(self, receive: Receive) -> bytes:
        """The body, counted as held.

        Raises:
            _NotTakenError: it is too large, too slow, cut, or one too many.
        """
        parts: list[bytes] = []
        nbytes = 0
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _NotTakenError(400, "the body ends early")
                    part = message.get("body", b"")
                    nbytes += len(part)
                    self._held_nbytes += len(part)
                    parts.append(part)
                    if nbytes > self._most_nbytes:
                        raise _NotTakenError(413, f"a body has at most {self._most_nbytes} bytes")
                    if self._held_nbytes > MAX_BODIES_NBYTES:
                        raise _NotTakenError(503, "too many bytes are in transfer at once")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            self._held_nbytes -= nbytes
            raise _NotTakenError(408, f"the body did not arrive within {BODY_S:.0f} s") from None
        except BaseException:
            self._held_nbytes -= nbytes
            raise

    async def _refuse(self, receive: Receive, send: Send, status: int, reason: str) -> None:
        """Answer somebody who may send, but not this; what he sends on is thrown away for a while, so that he reads it."""
        content = b'{"error":"%s"}\n' % reason.encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        if status == 503:  # noqa: PLR2004  later there may be room
            headers.append((b"retry-after", b"1"))
        is_late = status == 408  # noqa: PLR2004
        if is_late:
            headers.append((b"connection", b"close"))
        else:
            with contextlib.suppress(TimeoutError):
                await _throw_away(receive, 4 * self._most_nbytes)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def _throw_away(receive: Receive, most_nbytes: int) -> None:
    async with asyncio.timeout(BODY_S):
        nbytes = 0
        while nbytes < most_nbytes:
            message = await receive()
            nbytes += len(message.get("body", b""))
            if not message.get("more_body"):
                return


def _environ_of(scope: Message) -> dict[str, Any]:
    """What WSGI wants to know of a request."""
    host, port = scope.get("server") or ("localhost", 80)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode("utf-8", "replace").decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": host,
        "SERVER_PORT": str(port or 80),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": (scope.get("client") or ("",))[0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if "_" in name:  # else it could pass for a header with a dash
            continue
        key = name.upper().replace("-", "_")
        key = key if key in {"CONTENT_LENGTH", "CONTENT_TYPE"} else f"HTTP_{key}"
        joint = "; " if key == "HTTP_COOKIE" else ","
        environ[key] = f"{environ[key]}{joint}{value}" if key in environ else value
    return environ


def _answer(server: Flask, environ: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """What the application says: status, headers and content."""
    begun: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], _error: Any = None) -> Callable[[bytes], None]:
        begun[:] = [int(status.split(" ", 1)[0]), headers]
        return content.append

    content: list[bytes] = []
    answer = server.wsgi_app(environ, start)
    try:
        content.extend(answer)
    finally:
        if hasattr(answer, "close"):
            answer.close()
    status, headers = begun
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return status, encoded, b"".join(content)
