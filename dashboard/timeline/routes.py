"""What the timeline page fetches: rows, rectangles, details of a span, matches of a search, a slice to keep."""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from flask import Flask, Response, abort, jsonify, request

from ...collector.reports.palette import COLOURS
from ...timeline.commands import clean
from ...timeline.errors import TlkitError
from ...timeline.export import write
from ...timeline.selection import select
from ..source import Source
from .lod import SHADES, view
from .rows import CATEGORIES, Rows

#: Rows that are drawn at a time.
MOST_ROWS: Final = 400
#: Matches that are sent; all are counted.
MOST_MATCHES: Final = 2000
#: Characters of a name, and of args, that are shown.
MOST_NAME: Final = 400
MOST_ARGS: Final = 20_000
#: A longer pattern is no search but an attack.
MOST_PATTERN: Final = 200
#: Names are tried one by one: so many at most.
MOST_NAMES: Final = 200_000


def add_routes(server: Flask, source: Source) -> None:
    """Serve the data of `source`."""
    server.add_url_rule("/data/rows", "data_rows", lambda: jsonify(_rows(source)))
    server.add_url_rule("/data/view", "data_view", lambda: _view(source))
    server.add_url_rule("/data/span", "data_span", lambda: jsonify(_span(source, _integer("number"))))
    server.add_url_rule("/data/names", "data_names", lambda: jsonify(_names(source)))
    server.add_url_rule("/data/search", "data_search", lambda: jsonify(_search(source)))
    server.add_url_rule("/data/slice", "data_slice", lambda: _slice(source))
    server.add_url_rule("/data/step", "data_step", lambda: jsonify(_step(source)))


def _built(source: Source) -> Rows:
    try:
        return source.rows()
    except LookupError as error:
        abort(404, description=str(error))


def _integer(name: str, default: int | None = None) -> int:
    text = request.args.get(name, "")
    try:
        value = int(text) if text else default
    except ValueError:
        value = None
    if value is None or abs(value) > 2**62:
        abort(400, description=f"{name} has to be a whole number")
    return value


def _rows(source: Source) -> dict[str, Any]:
    rows = _built(source)
    analysis = source.analysis
    hosts = analysis.trace.meta.hosts if analysis else {}
    return {
        "version": source.version,
        "names": [clean(name)[:MOST_NAME] for name in rows.names],
        "ranks": rows.ranks.tolist(),
        "hosts": {str(rank): clean(host) for rank, host in hosts.items()},
        "end_ns": rows.end_of_all_ns,
        "categories": list(CATEGORIES),
        "colours": [COLOURS[name] for name in CATEGORIES],
        "shades": SHADES,
    }


def _view(source: Source) -> Response:
    rows = _built(source)
    low, high = _integer("low"), _integer("high")
    first, count = _integer("first", 0), _integer("count", 1)
    try:
        shown = view(rows, low, high, first, min(count, MOST_ROWS), _integer("columns"))
    except ValueError as error:
        abort(400, description=str(error))
    answer = Response(shown.to_bytes(), mimetype="application/octet-stream")
    answer.headers["X-Version"] = str(source.version)
    return answer


def _span(source: Source, number: int) -> dict[str, Any]:
    rows = _built(source)
    analysis = source.analysis
    if analysis is None or not 0 <= number < len(analysis.trace.spans):
        abort(404, description="there is no such span")
    trace = analysis.trace
    span = trace.spans.iloc[number]
    args = ""
    if span["args_row"] >= 0:
        try:
            args = trace.raw_args[int(span["args_row"])][:MOST_ARGS].decode("utf-8", "replace")
        except TlkitError as error:
            args = f"({error})"
    return {
        "number": number,
        "row": int(rows.row_of_span[number]),
        "rank": int(span["rank"]),
        "lane": clean(str(span["lane"]))[:MOST_NAME],
        "name": clean(str(span["name"]))[:MOST_NAME],
        "category": str(span["category"]),
        "start_ns": int(span["start_ns"]),
        "dur_ns": int(span["dur_ns"]),
        "args": clean(args),
        "flows": _flows(source, int(span["rank"]), int(span["start_ns"]), int(span["dur_ns"]), str(span["category"])),
    }


def _names(source: Source) -> dict[str, str]:
    """Names of some spans, by number."""
    analysis = source.analysis
    wanted = request.args.get("numbers", "").split(",")[:MOST_ROWS]
    if analysis is None or not all(text.isdigit() and len(text) < 10 for text in wanted):  # noqa: PLR2004
        abort(400, description="numbers has to be a list of whole numbers")
    name = analysis.trace.spans["name"]
    numbers = [int(text) for text in wanted if int(text) < len(name)]
    return {str(number): clean(str(name.iat[number])[:MOST_NAME]) for number in numbers}


def _flows(source: Source, rank: int, start_ns: int, dur_ns: int, category: str) -> list[list[int]]:
    """Arrows of a collective: from where its tensors were submitted, and to the same collective of the other ranks.

    Each is [rank, time, rank, time].
    """
    analysis = source.analysis
    if analysis is None or category != "collective":
        return []
    table = analysis.trace.collectives
    mine = table[
        (table["rank"] == rank) & (table["start_ns"] >= start_ns) & (table["start_ns"] < start_ns + max(dur_ns, 1))
    ]
    if mine.empty:
        mine = table[
            (table["rank"] == rank) & (table["start_ns"] <= start_ns) & (table["start_ns"] + table["dur_ns"] > start_ns)
        ]
    if mine.empty or int(mine["seq"].iloc[0]) < 0:
        return []
    seq, process_set = int(mine["seq"].iloc[0]), int(mine["process_set"].iloc[0])
    everywhere = table[(table["seq"] == seq) & (table["process_set"] == process_set)]
    flows = [
        [int(row["rank"]), int(row["submitted_ns"]), int(row["rank"]), int(row["start_ns"])]
        for row in everywhere.to_dict("records")
        if row["submitted_ns"] >= 0
    ]
    here = int(mine["start_ns"].iloc[0])
    flows += [
        [rank, here, int(row["rank"]), int(row["start_ns"])]
        for row in everywhere.to_dict("records")
        if row["rank"] != rank
    ]
    return flows[:MOST_ROWS]


def _search(source: Source) -> dict[str, Any]:
    """Spans whose name holds the text, in order of time; /text/ is a regular expression."""
    _built(source)
    analysis = source.analysis
    wanted = request.args.get("q", "")
    if analysis is None or not wanted:
        return {"count": 0, "spans": []}
    if len(wanted) > MOST_PATTERN:
        abort(400, description=f"a search has at most {MOST_PATTERN} characters")
    names = analysis.trace.spans["name"].cat.categories[:MOST_NAMES]
    if len(wanted) > 2 and wanted.startswith("/") and wanted.endswith("/"):  # noqa: PLR2004
        try:
            # The engine of Arrow (RE2) takes linear time, whatever the pattern.
            found = names.astype("string[pyarrow]").str.contains(wanted[1:-1], regex=True)
        except Exception as error:  # whatever Arrow calls it
            abort(400, description=f"not a regular expression: {str(error).splitlines()[0][:200]}")
    else:
        found = names.astype("string[pyarrow]").str.contains(wanted, regex=False, case=False)
    codes = np.flatnonzero(np.asarray(found, dtype=bool))
    spans = analysis.trace.spans
    chosen = np.isin(spans["name"].cat.codes.to_numpy(), codes)
    rank = request.args.get("rank", "")
    if rank.isdigit():
        chosen &= spans["rank"].to_numpy() == int(rank)
    matches = np.flatnonzero(chosen)
    starts = spans["start_ns"].to_numpy()[matches]
    order = matches[np.argsort(starts, kind="stable")]
    shown = order[:MOST_MATCHES]
    return {"count": len(order), "spans": shown.tolist(), "start_ns": spans["start_ns"].to_numpy()[shown].tolist()}


def _step(source: Source) -> dict[str, Any]:
    """When a step began and ended, over all ranks."""
    analysis = source.analysis
    number = _integer("number")
    steps = analysis.facts.steps if analysis is not None else None
    if steps is None or number not in steps.numbers:
        abort(404, description=f"there is no step {number} among the analysed ones")
    column = int(np.flatnonzero(steps.numbers == number)[0])
    return {"low_ns": int(steps.start_ns[:, column].min()), "high_ns": int(steps.end_ns[:, column].max())}


def _slice(source: Source) -> Response:
    """A stretch of time as a Chrome trace."""
    _built(source)
    analysis = source.analysis
    low, high = _integer("low"), _integer("high")
    assert analysis is not None
    try:
        part = select(analysis.trace, time_ns=(low, high))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "slice.json"
            write(part, path, "chrome")
            content = path.read_bytes()
    except TlkitError as error:
        abort(400, description=str(error))
    answer = Response(content, mimetype="application/json")
    answer.headers["Content-Disposition"] = 'attachment; filename="slice.json"'
    return answer


def describe_error(code: int, description: str) -> Response:
    """An error in plain words."""
    return Response(json.dumps({"error": description}), status=code, mimetype="application/json")
