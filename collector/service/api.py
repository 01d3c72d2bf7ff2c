"""The collector's HTTP interface (docs/collector.md)."""

from typing import Any, Final

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from .dumps import NoRecorderError
from .guard import protect
from .identity import RUN_ID
from .jobs import Jobs
from .metrics import store_metrics, to_prometheus
from .pieces import unpack
from .store import MAX_PIECE_NBYTES, FullError, OffsetError, OtherRunError, RefusedError

_STATUS: Final[dict[type[RefusedError], int]] = {OtherRunError: 412, FullError: 507}


def create_api(jobs: Jobs, *, host: str = "127.0.0.1", token: str | None = None) -> Flask:
    """The application.

    Args:
        host: the address that it will listen at.
        token: what senders and readers need beyond loopback.
    """
    server = Flask("tlkit.collector.service")
    store = jobs.store

    @server.put("/v1/runs/<run>/shards/<shard>")
    def put(run: str, shard: str) -> Any:
        offset = _offset()
        run_id, before = request.args.get("run_id", ""), request.args.get("before", "")
        if offset is None or (run_id and not RUN_ID.fullmatch(run_id)):
            return _error(400, "offset has to be a number of bytes, run_id 1 to 32 hexadecimal digits")
        if (request.content_length or 0) > MAX_PIECE_NBYTES:
            return _error(413, f"a piece has at most {MAX_PIECE_NBYTES} bytes")
        piece = request.get_data(cache=False)
        try:
            size = store.append(run, shard, offset, piece, run_id=run_id, before=before)
        except OffsetError as error:
            return jsonify({"size": error.size}), 409
        except RefusedError as error:
            return _error(_STATUS.get(type(error), 400), str(error))
        jobs.wake(run)
        return jsonify({"size": size, **_asked(run)})

    @server.post("/v1/runs/<run>/pieces")
    def put_many(run: str) -> Any:
        run_id = request.args.get("run_id", "")
        if run_id and not RUN_ID.fullmatch(run_id):
            return _error(400, "run_id has to be 1 to 32 hexadecimal digits")
        try:
            sizes = store.append_many(run, unpack(request.get_data(cache=False)), run_id=run_id)
        except RefusedError as error:
            return _error(_STATUS.get(type(error), 400), str(error))
        except ValueError as error:
            return _error(400, str(error))
        jobs.wake(run)
        return jsonify({"shards": sizes, **_asked(run)})

    @server.post("/v1/runs/<run>/alive")
    def alive(run: str) -> Any:
        try:
            return jsonify({"ok": True, **_asked(run)}) if store.hear(run) else _error(404, "run not found")
        except RefusedError as error:
            return _error(400, str(error))

    def _asked(run: str) -> dict[str, Any]:
        """What the sender is to pass on to the ranks, if it says that it can."""
        asked = jobs.dumps.hear(run) if request.args.get("dumps") == "1" else None
        return {} if asked is None else {"dump": asked}

    @server.get("/v1/runs")
    def runs() -> Any:
        kept = {"nbytes": store.nbytes, "most_nbytes": store.most_nbytes, "waiting": store.waiting.reasons()}
        return jsonify({"runs": store.runs(), "status": jobs.status, "store": kept})

    @server.get("/v1/runs/<run>")
    def run_of(run: str) -> Any:
        try:
            return jsonify(
                {
                    "shards": store.sizes(run),
                    "run_id": store.run_id(run),
                    "waiting": store.waiting.reasons().get(run, ""),
                    "dump": jobs.dumps.state(run),
                }
            )
        except RefusedError as error:
            return _error(400, str(error))

    @server.get("/v1/runs/<run>/shards/<shard>")
    def read(run: str, shard: str) -> Any:
        offset = _offset("0")
        try:
            piece = None if offset is None else store.read(run, shard, offset)
        except RefusedError as error:
            return _error(400, str(error))
        if piece is None:
            return _error(404, "shard not found")
        return Response(piece, mimetype="application/octet-stream")

    _add_requests(server, jobs)
    _add_findings(server, jobs)

    @server.get("/healthz")
    def health() -> Any:
        return jsonify({"ok": True})

    @server.errorhandler(HTTPException)
    def plainly(error: HTTPException) -> Any:
        return _error(error.code or 500, str(error.description))

    protect(server, host=host, token=token, most_nbytes=MAX_PIECE_NBYTES)
    return server


def _add_findings(server: Flask, jobs: Jobs) -> None:
    """What was found: the report of a run, and what Prometheus asks for."""

    @server.get("/v1/runs/<run>/report")
    def report(run: str) -> Any:
        found = jobs.report(run)
        if found is None:
            return _error(404, "there is no analysis of such a run yet")
        return Response(found, mimetype="application/json")

    @server.get("/metrics")
    def metrics() -> Any:
        text = to_prometheus(jobs.newest()) + store_metrics(
            jobs.store.nbytes, jobs.store.most_nbytes, len(jobs.store.waiting.reasons())
        )
        return Response(text, mimetype="text/plain; version=0.0.4")


def _add_requests(server: Flask, jobs: Jobs) -> None:
    """What is asked of running jobs."""

    @server.post("/v1/runs/<run>/dump")
    def dump(run: str) -> Any:
        try:
            return jsonify({"request": jobs.dumps.ask(run, request.args.get("why", ""))}), 202
        except NoRecorderError as error:
            return _error(404, str(error))

    @server.post("/v1/runs/<run>/dump/<number>")
    def passed_on(run: str, number: str) -> Any:
        jobs.dumps.pass_on(run, number)
        return jsonify({"ok": True})


def _offset(otherwise: str = "") -> int | None:
    """Where a piece begins; None for what is no number of 63 bits."""
    text = request.args.get("offset", otherwise)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None  # noqa: PLR2004


def _error(status: int, reason: str) -> Response:
    answer = jsonify({"error": reason})
    answer.status_code = status
    return answer
