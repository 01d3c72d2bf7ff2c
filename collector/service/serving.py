"""Serves an application until it is interrupted."""

import signal
import socket

from flask import Flask
from waitress import create_server

from ...timeline.errors import UsageError

#: A page asks for its figures and views side by side.
THREADS = 8


def serve(server: Flask, host: str, port: int, token: str | None, name: str) -> int:
    """Serve at an address and say which; returns 0 when interrupted.

    Raises:
        UsageError: the address cannot be listened at.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"cannot listen at {host} port {port}: {reason}; choose another with --host and --port"
        ) from error
    port = listener.getsockname()[1]
    serving = create_server(server, sockets=[listener], threads=THREADS, ident="")
    shown = f"[{host}]" if ":" in host else host
    print(f"{name}: http://{shown}:{port}/" + (f"?token={token}" if token else ""), flush=True)
    # Whoever ends us gently gets the same end as Ctrl-C: what has been put into temporary folders goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        serving.run()
    except KeyboardInterrupt:
        pass
    finally:
        serving.close()
    return 0
