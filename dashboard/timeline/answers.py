"""What the timeline page fetches, by name: JSON, or for rectangles bytes."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from flask import Response, abort, jsonify, request

from ...collector.model.step_times import step_durations
from ...collector.reports.palette import COLOURS, LABELS
from ...timeline.commands.arguments import clean
from ...timeline.errors import TlkitError
from ...timeline.export.files import write
from ...timeline.model.selection import select
from ..source import Source
from . import details, search, tracks
from .lod import MAX_COLUMNS, SHADES, view
from .region import Region, summarise
from .rows import CATEGORIES, ORDER
from .run import Run
from .table import MAX_NAME, MAX_PAGE, Question, Table, name_of

#: The status of an answer that is to come; browsers complain of what looks like an error.
NOT_YET: Final = 202
#: Rows that are drawn at a time.
MAX_ROWS: Final = 400
#: Characters of a list of rows, and ranks in it.
MAX_LIST: Final = 4000
#: Spans that a search sends for the canvas to mark; all are counted.
MAX_MATCHES: Final = 500
#: A slice is made of so many spans at most.
MAX_SLICE: Final = 2_000_000


def _run(source: Source) -> Run:
    which = request.args.get("run", "")
    if which not in {"", "0", "1"}:
        abort(400, description="run has to be 0, or 1 for the run that is compared")
    try:
        return source.run(is_compared=which == "1")
    except LookupError as error:
        opening = source.opening
        if opening is not None:  # which takes longer than questions wait: the page asks again
            later = jsonify({"error": f"the run is being opened ({opening.describe()})"})
            later.status_code = NOT_YET
            abort(later)
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


def _window() -> tuple[int, int]:
    low, high = _integer("low"), _integer("high")
    if high <= low:
        abort(400, description="high has to be after low")
    return low, high


def _columns() -> int:
    columns = _integer("columns")
    if not 1 <= columns <= MAX_COLUMNS:
        abort(400, description=f"columns has to be between 1 and {MAX_COLUMNS}")
    return columns


def _numbers(name: str, most: int) -> list[int]:
    """A list like 0-12,15,20-40 of at most so many numbers."""
    text = request.args.get(name, "")
    found: list[int] = []
    for part in text[: MAX_LIST + 1].split(",") if text else ():
        low, _, high = part.partition("-")
        if not low.isdigit() or not (high or low).isdigit() or len(low) > 9 or len(high) > 9:  # noqa: PLR2004
            abort(400, description=f"{name} has to be a list of whole numbers, such as 0-12,15")
        found += range(int(low), min(int(high or low), int(low) + most) + 1)
        if len(found) > most or len(text) > MAX_LIST:
            abort(400, description=f"{name} has too many numbers")
    return found


def _rows(source: Source, run: Run) -> dict[str, Any]:
    """All that the page has to know of the rows before it draws one."""
    rows, meta, facts = run.rows, run.trace.meta, run.analysis.facts
    used, lane = np.unique(rows.lane, return_inverse=True) if len(rows) else (np.empty(0, np.int64), rows.lane)
    _, low, high = run.steps
    return {
        "version": source.version,
        "lanes": [clean(rows.lanes[code])[:MAX_NAME] for code in used.tolist()],
        "lane": lane.tolist(),
        "kind": rows.kind.tolist(),
        "kinds": list(map(str, ORDER)),
        "depth": rows.depth.tolist(),
        "ranks": rows.ranks.tolist(),
        "hosts": {str(rank): clean(host)[:MAX_NAME] for rank, host in meta.hosts.items()},
        "exposed_ns": {str(rank): ns for rank, ns in run.exposed_ns.items()},
        "end_ns": rows.end_of_all_ns,
        "first_step_ns": int(low[0]) if len(low) else 0,
        "last_step_ns": int(high.max()) if len(high) else rows.end_of_all_ns,
        "categories": list(CATEGORIES),
        "used": run.categories,
        "labels": [LABELS.get(name, name).removesuffix(" (exposed)") for name in CATEGORIES],
        "colours": [COLOURS[name] for name in CATEGORIES],
        "shades": SHADES,
        "counters": tracks.counters(run),
        "has_path": facts.graph is not None and not facts.is_of_parts,
        "is_aligned": facts.has_one_clock and facts.trace.meta.knows_order,
        "compares": bool(source.others()) or source.compared is not None,  # whose analysis may take a while
        "spans": len(run.trace.spans),
        "args": len(run.trace.raw_args),
    }


def _view(source: Source, run: Run) -> Response:
    low, high = _window()
    shown = view(run.rows, low, high, _numbers("rows", MAX_ROWS), _columns())
    answer = Response(shown.to_bytes(), mimetype="application/octet-stream")
    answer.headers["X-Version"] = str(source.version)
    return answer


def _span_number(run: Run) -> int:
    number = _integer("number")
    if not 0 <= number < len(run.trace.spans):
        abort(404, description="span not found")
    return number


def _names(run: Run) -> dict[str, str]:
    """Names of some spans, by number."""
    spans = run.trace.spans
    numbers = [number for number in _numbers("numbers", MAX_ROWS) if number < len(spans)]
    names, ranks, starts = spans["name"], spans["rank"].to_numpy(), spans["start_ns"].to_numpy()
    return {
        str(number): name_of(str(names.iat[number]), run.step_of(int(ranks[number]), int(starts[number])))
        for number in numbers
    }


def _near(run: Run) -> dict[str, Any]:
    """The span of a row nearest to a moment, in full."""
    turn = _integer("turn", 0)
    number = details.neighbour(run, _integer("row"), _integer("at"), max(min(turn, 1), -1))
    if number < 0:
        abort(404, description="there is no span")
    return details.describe(run, number)


def _question() -> Question:
    given = request.args
    rank, step, category = given.get("rank", ""), given.get("step", ""), given.get("category", "")
    if category and category not in CATEGORIES:
        abort(400, description=f"category has to be one of {', '.join(CATEGORIES)}")
    return Question(
        wanted=given.get("q", ""),
        rank=_integer("rank") if rank else None,
        step=_integer("step") if step else None,
        window=_window() if "low" in given or "high" in given else None,
        category=category,
        order=given.get("order", "start"),
        descending=given.get("descending", "") == "1",
    )


def _spans(run: Run) -> dict[str, Any]:
    """A page of the table of spans; all are counted, by rank as well."""
    question, offset, limit = _question(), _integer("offset", 0), _integer("limit", 50)
    found = Table(run).page(question, offset, limit)
    return {
        "count": found.count,
        "by_rank": {str(rank): count for rank, count in found.by_rank.items()},
        "offset": offset,
        "spans": Table(run).describe(found.spans),
    }


def _args(run: Run) -> dict[str, Any]:
    """Spans by their args, some at a time: `next` is where to go on."""
    found = search.find_in_args(run, request.args.get("q", ""), _integer("begin", 0))
    numbers = np.array(found.spans[:MAX_MATCHES], dtype=np.int64)
    rank = request.args.get("rank", "")
    if rank:
        numbers = numbers[run.trace.spans["rank"].to_numpy()[numbers] == _integer("rank")]
    return {
        "count": len(found.spans) if not rank else len(numbers),
        "spans": Table(run).describe(numbers[:MAX_PAGE]),
        "next": found.next,
        "ratio": found.ratio,
    }


def _region(run: Run) -> dict[str, Any]:
    low, high = _window()
    rows = tuple(_numbers("rows", len(run.rows))) if "rows" in request.args else None
    return summarise(run, Region(low, high, rows), request.args.get("by", "name"))


def _step(run: Run) -> dict[str, Any]:
    """When a step began and ended, over all ranks, how long it took (as everywhere the median of the ranks), and a usual one."""
    number = _integer("number")
    numbers, low, high = run.steps
    at = np.flatnonzero(numbers == number)
    if not len(at):
        abort(404, description=f"there is no step {number}")
    steps = run.analysis.facts.steps
    usual = -1
    if steps.count:
        took = step_durations(steps)
        others = np.where(steps.numbers == number, np.inf, took.astype(float))
        usual = int(steps.numbers[int(np.argmin(np.abs(others - float(np.median(took)))))])
    mine = run.step_table[run.step_table["step"] == number]
    took_ns = round(float((mine["end_ns"] - mine["start_ns"]).median()))
    return {"low_ns": int(low[at[0]]), "high_ns": int(high[at[0]]), "took_ns": took_ns, "usual": usual}


def _path(run: Run) -> dict[str, Any]:
    low, high = _window()
    return {"stretches": tracks.path(run, low, high, _columns())}


def _counter(run: Run) -> dict[str, Any]:
    low, high = _window()
    columns = _columns()
    try:
        return {
            str(number): tracks.counter(run, number, low, high, columns) for number in _numbers("numbers", MAX_ROWS)
        }
    except IndexError:
        abort(404, description="counter not found")


def _slice(run: Run) -> Response:
    """A stretch of time as a Chrome trace."""
    low, high = _window()
    first, last = run.rows.all_within(np.arange(len(run.rows)), low, high)
    inside = int((last - first).sum())
    if inside > MAX_SLICE:
        abort(400, description=f"{inside:,} spans are too many to export: zoom in")
    try:
        part = select(run.whole_trace(), time_ns=(low, high))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "slice.json"
            write(part, path, "chrome")
            content = path.read_bytes()
    except TlkitError as error:
        abort(400, description=str(error))
    answer = Response(content, mimetype="application/json")
    answer.headers["Content-Disposition"] = 'attachment; filename="slice.json"'
    return answer


_ANSWERS: Final[dict[str, Callable[[Source, Run], Any]]] = {
    "rows": _rows,
    "view": _view,
    "span": lambda _, run: details.describe(run, _span_number(run)),
    "names": lambda _, run: _names(run),
    "near": lambda _, run: _near(run),
    "edge": lambda _, run: {"ns": details.edge(run, _integer("row"), _integer("at"), _integer("within"))},
    "spans": lambda _, run: _spans(run),
    "args": lambda _, run: _args(run),
    "region": lambda _, run: _region(run),
    "step": lambda _, run: _step(run),
    "steps": lambda _, run: tracks.steps(run, *_window()),
    "path": lambda _, run: _path(run),
    "counter": lambda _, run: _counter(run),
    "slice": lambda _, run: _slice(run),
}


def answer(name: str, source: Source) -> Any:
    """What to say to the request that is being served: a response, or what is JSON.

    Args:
        name: one of routes.NAMES.

    Raises:
        UsageError: it makes no sense.
        HTTPException: it asks for what is not there.
    """
    return _ANSWERS[name](source, _run(source))
