"""The collector's HTTP interface (docs/collector.md)."""

import threading
from collections.abc import Callable
from typing import Any, Final

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from ..analysis import Analysis
from ..reports.report import make_report
from .alerts import Alerts
from .guard import protect
from .live import Follower
from .metrics import to_prometheus
from .store import MOST_PIECE_NBYTES, OffsetError, RefusedError, ShardStore

#: Runs that are analysed at the same time; of the others the shards are kept.
MOST_FOLLOWED: Final = 8
#: Runs of before that are analysed again when the collector starts.
MOST_WOKEN: Final = 3


class Jobs:
    """The runs of a store, each followed as soon as it grows."""

    def __init__(self, store: ShardStore, alerts: Alerts) -> None:
        self.store = store
        self._alerts = alerts
        self._lock = threading.Lock()
        self._followers: dict[str, Follower] = {}
        self._newest: dict[str, Analysis] = {}
        self.status: dict[str, str] = {}
        for run in store.runs()[:MOST_WOKEN]:
            self.wake(run)

    def wake(self, run: str) -> None:
        """A run has grown: follow it."""
        with self._lock:
            if run in self._followers:
                return
            while len(self._followers) >= MOST_FOLLOWED:
                oldest = next(iter(self._followers))
                self._newest.pop(oldest, None)
                self.status.pop(oldest, None)
                threading.Thread(target=self._followers.pop(oldest).stop, daemon=True).start()
            follower = Follower([str(self.store.path_of(run))], self._keeper(run), self._teller(run))
            self._followers[run] = follower
            follower.start()

    def _keeper(self, run: str) -> Callable[[Analysis], None]:
        def keep(analysis: Analysis) -> None:
            self._newest[run] = analysis
            self._alerts.look(run, analysis)

        return keep

    def _teller(self, run: str) -> Callable[[str], None]:
        def tell(words: str) -> None:
            self.status[run] = words

        return tell

    def newest(self) -> dict[str, Analysis]:
        """The newest analysis of each run that is followed."""
        return dict(self._newest)

    def stop(self) -> None:
        """Stop following."""
        with self._lock:
            for follower in self._followers.values():
                follower.stop()
            self._followers.clear()


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
        offset = request.args.get("offset", "")
        if not offset.isdigit() or len(offset) > 18:  # noqa: PLR2004  63 bits
            return _error(400, "offset has to be a number of bytes")
        if (request.content_length or 0) > MOST_PIECE_NBYTES:
            return _error(413, f"a piece has at most {MOST_PIECE_NBYTES} bytes")
        try:
            size = store.append(run, shard, int(offset), request.get_data(cache=False))
        except OffsetError as error:
            return jsonify({"size": error.size}), 409
        except RefusedError as error:
            return _error(400, str(error))
        except OSError as error:
            return _error(507, f"it cannot be kept: {error.strerror}")
        jobs.wake(run)
        return jsonify({"size": size})

    @server.get("/v1/runs")
    def runs() -> Any:
        return jsonify({"runs": store.runs(), "status": jobs.status})

    @server.get("/v1/runs/<run>")
    def run_of(run: str) -> Any:
        try:
            return jsonify({"shards": store.sizes(run)})
        except RefusedError as error:
            return _error(400, str(error))

    @server.get("/v1/runs/<run>/shards/<shard>")
    def read(run: str, shard: str) -> Any:
        offset = request.args.get("offset", "0")
        try:
            sizes = store.sizes(run)
        except RefusedError as error:
            return _error(400, str(error))
        if shard not in sizes or not offset.isdigit() or len(offset) > 18:  # noqa: PLR2004
            return _error(404, "there is no such shard")
        with (store.path_of(run) / shard).open("rb") as file:
            file.seek(int(offset))
            return Response(file.read(MOST_PIECE_NBYTES), mimetype="application/octet-stream")

    @server.get("/v1/runs/<run>/report")
    def report(run: str) -> Any:
        analysis = jobs.newest().get(run)
        return (
            _error(404, "there is no analysis of such a run yet")
            if analysis is None
            else jsonify(make_report(analysis))
        )

    @server.get("/metrics")
    def metrics() -> Any:
        return Response(to_prometheus(jobs.newest()), mimetype="text/plain; version=0.0.4")

    @server.get("/healthz")
    def health() -> Any:
        return jsonify({"ok": True})

    @server.errorhandler(HTTPException)
    def plainly(error: HTTPException) -> Any:
        return _error(error.code or 500, str(error.description))

    protect(server, host=host, token=token, most_nbytes=MOST_PIECE_NBYTES)
    return server


def _error(status: int, reason: str) -> Response:
    answer = jsonify({"error": reason})
    answer.status_code = status
    return answer
