"""Serves an application until it is interrupted."""

import asyncio
import contextlib
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvicorn
from flask import Flask

from ...timeline.errors import UsageError
from .bridge import Bridge
from .connections import HEADER_S, MAX_CONNECTIONS, MAX_HEADER_NBYTES, Connection
from .reachable import shown_host

#: Answers that are under way when the server ends.
_LAST_ANSWERS_S: Final = 3
#: Open files: twice MAX_CONNECTIONS, what is being accepted, and files of runs.
_FILES: Final = 8192


class _Loop(asyncio.SelectorEventLoop):
    """An event loop in which TLS has to be set up within the time that a header has, and on so many connections at once.

    Where there are more the one goes that has been at it longest: `connections.py` knows of a connection only afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self._setting_up: dict[asyncio.Future[Any], asyncio.Transport] = {}

    # asyncio has no public place between the acceptance of a connection and the end of its handshake.
    def _make_ssl_transport(
        self, rawsock: socket.socket, protocol: Any, sslcontext: Any, waiter: asyncio.Future[Any], **settings: Any
    ) -> asyncio.Transport:
        made: asyncio.Transport = super()._make_ssl_transport(  # type: ignore[misc]
            rawsock, protocol, sslcontext, waiter, **settings
        )
        self._setting_up[waiter] = made
        waiter.add_done_callback(lambda done: self._setting_up.pop(done, None))
        if len(self._setting_up) > MAX_CONNECTIONS:
            # Soon: of many that come at once even the first knows its socket only after this.
            self.call_soon(self._setting_up.pop(next(iter(self._setting_up))).abort)
        return made

    async def create_server(self, *args: Any, **settings: Any) -> asyncio.Server:
        if settings.get("ssl") is not None:
            settings["ssl_handshake_timeout"] = HEADER_S
        return await super().create_server(*args, **settings)


class _Server(uvicorn.Server):
    """Ends, too, when there is nothing to serve any more."""

    def __init__(self, settings: uvicorn.Config, is_over: Callable[[], bool]) -> None:
        super().__init__(settings)
        self._is_over = is_over

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._is_over()


def serve(
    server: Flask,
    host: str,
    port: int,
    name: str,
    *,
    shown_token: str | None = None,
    certificate: tuple[str, str | None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Serve at an address and say which; returns 0 when interrupted, or when there is nothing to serve any more.

    Args:
        name: of the command, for what it prints.
        shown_token: a token that is printed with the address, because it was generated.
        certificate: files with a certificate and its key (None: in the same file), to serve https.
        is_over: asked ten times a second whether there is nothing to serve any more.

    Raises:
        UsageError: the address cannot be listened at, or the certificate cannot be read.
    """
    bridge = Bridge(server)
    settings = _settings(bridge, certificate)
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    shown = shown_host(host)
    scheme = "http" if certificate is None else "https"
    print(f"{name}: {scheme}://{shown}:{port}/" + (f"?token={shown_token}" if shown_token else ""), flush=True)
    # Whoever ends us gently gets the same end as Ctrl-C: what has been put into temporary folders goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _allow_files()
    try:
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(_Server(settings, is_over).serve(sockets=[listener]))
    finally:
        bridge.close()
        listener.close()
    return 0


def _allow_files() -> None:
    """So many connections that are being set up leave files for the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _settings(bridge: Bridge, certificate: tuple[str, str | None] | None) -> uvicorn.Config:
    certfile, keyfile = certificate or (None, None)
    settings = uvicorn.Config(
        bridge,
        interface="asgi3",
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_NBYTES,
        timeout_keep_alive=int(HEADER_S),
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
        backlog=1024,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )
    try:
        for file in filter(None, (certfile, keyfile)):
            Path(file).open("rb").close()
        settings.load()
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or error
        raise UsageError(
            f"--certfile {certfile}, --keyfile {keyfile}: no certificate with its key: {reason}"
        ) from error
    return settings


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
        # Connections have what their listener has.  Otherwise an answer's body waits until its header is acknowledged, which
        # the visitor's system puts off for 40 ms; asyncio sees to it only where the socket was made with a protocol's number.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"cannot listen at {host} port {port}: {reason}; choose another with --host and --port"
        ) from error
    return listener
