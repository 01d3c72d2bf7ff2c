"""What the server says to requests that make no sense: 400 to a callback that nobody could have sent, 404 to an unknown page."""

import sys
from collections.abc import Collection
from typing import Any, Final

from dash import Dash
from flask import Response, request
from werkzeug.exceptions import BadRequest, HTTPException

from ..timeline.errors import first_line
from .timeline import routes

_CALLBACKS: Final = "/_dash-update-component"


def add_manners(app: Dash, pages: Collection[str]) -> None:
    """Answer what is wrong with a request as what it is.

    Args:
        pages: names of those there are.
    """
    server = app.server
    of_pages = {f"/{page}" for page in pages} | {"/", ""}

    @server.before_request
    def check() -> None:
        if request.path == _CALLBACKS and request.method == "POST":
            check_body(app, request.get_json(silent=True))

    @server.after_request
    def unknown_page(response: Response) -> Response:
        # Dash answers every address with its frame, which then says that there is no such page.
        if request.endpoint == "/<path:path>" and request.path.rstrip("/") not in of_pages:
            response.status_code = 404
        return response

    @server.errorhandler(HTTPException)
    def plainly(error: HTTPException) -> Any:
        if request.path.startswith("/data/"):
            return routes.describe_error(error.code or 500, str(error.description))
        return f"{error.code}: {error.description}", error.code or 500, {"Content-Type": "text/plain; charset=utf-8"}

    @server.errorhandler(Exception)
    def mistake(error: Exception) -> Any:
        """A fault of ours: the visitor is told that there is one, the terminal which."""
        sys.stderr.write(f"tl-dash: {request.path}: {type(error).__name__}: {first_line(error)}\n")
        return "500: the page could not be created", 500, {"Content-Type": "text/plain; charset=utf-8"}


def check_body(app: Dash, body: Any) -> None:
    """Refuse a callback's body unless it names one of our outputs and gives a value to each of its inputs and states.

    Raises:
        BadRequest: it does not.
    """
    known = (
        app.callback_map.get(body.get("output")) if isinstance(body, dict) and _is_text(body.get("output")) else None
    )
    if known is None:
        raise BadRequest("callback not found")
    for group in ("inputs", "state"):
        given = body.get(group, [])
        wanted = [(item["id"], item["property"]) for item in known[group]]
        if not isinstance(given, list) or [_name(item) for item in given] != wanted:
            raise BadRequest(f"the {group} of this callback are {', '.join('.'.join(pair) for pair in wanted)}")
    changed = body.get("changedPropIds", [])
    if not isinstance(changed, list) or not all(map(_is_text, changed)):
        raise BadRequest("changedPropIds has to be a list of names")
    outputs = body.get("outputs")
    several = outputs if isinstance(outputs, list) else [outputs]
    if not all(_name(item) is not None for item in several):
        raise BadRequest("outputs has to name this callback's outputs")


def _name(item: Any) -> tuple[str, str] | None:
    if not isinstance(item, dict) or not _is_text(item.get("id")) or not _is_text(item.get("property")):
        return None
    return item["id"], item["property"]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
