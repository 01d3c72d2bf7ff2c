"""Where the timeline page fetches its data.  A question that makes no sense is a 400 with one line."""

import json
from typing import Any, Final
from urllib.parse import urlsplit

from flask import Flask, Response, abort, jsonify, request

from ...collector.service.guard import is_loopback
from ...collector.service.reachable import EVERYWHERE, shown_host
from ...timeline.errors import UsageError
from ..freed_memory import WhenIdle
from ..source import Source

#: What can be asked for below /data/; answers.py has what is said.
NAMES: Final = (
    *("rows", "view", "span", "names", "near", "edge", "spans", "args", "region", "step", "steps", "path", "counter"),
    "slice",
)


def add_routes(server: Flask, source: Source, *, host: str = "127.0.0.1") -> None:
    """Serve the data of `source`.

    Args:
        host: the address that is listened at, for links that others can open.
    """
    tidy = WhenIdle()

    def route(name: str) -> None:
        def handle() -> Any:
            from .answers import answer  # noqa: PLC0415  what it draws on takes longer to load than the first screen waits

            try:
                found = answer(name, source)
            except UsageError as error:
                abort(400, description=str(error))
            finally:
                tidy.touch()
            return found if isinstance(found, Response) else jsonify(found)

        server.add_url_rule(f"/data/{name}", f"data_{name}", handle)

    for name in NAMES:
        route(name)
    server.add_url_rule("/data/version", "data_version", lambda: jsonify({"version": source.version}))
    server.add_url_rule("/data/link", "data_link", lambda: jsonify({"base": _base(host)}))


def _base(host: str) -> str:
    """Where others find this server: a name for it that is not only this machine's own."""
    parts = urlsplit(request.host_url)
    if is_loopback(host) or not (is_loopback(parts.hostname or "") or parts.hostname in EVERYWHERE):
        return f"{parts.scheme}://{parts.netloc}"
    return f"{parts.scheme}://{shown_host(host)}" + (f":{parts.port}" if parts.port else "")


def describe_error(code: int, description: str) -> Response:
    """An error in plain words."""
    return Response(json.dumps({"error": description}), status=code, mimetype="application/json")
