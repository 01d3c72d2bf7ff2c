"""Does a file keep the rules of the Trace Event Format?

The rules are those of the format's description ("Trace Event Format", Google, 2016) as far as viewers depend on them: what
they would draw wrongly or drop silently is a violation.  Works on files of any writer.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Lane = tuple[Any, Any]
"""pid and tid."""

_METADATA = {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}
_PHASES = set("BEXiICbnestfPNODMVvRc(),")


def check_trace_events(source: bytes | str | Path) -> list[str]:
    """Violations of the format, each with the number of the event; none for a good file.

    An array that is not closed is allowed, as the format has it, and so is a comma before its end.
    """
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    events, problems = _parse(data)
    problems += [problem for index, event in enumerate(events) for problem in _check_fields(index, event)]
    if problems:
        return problems
    return [
        *_check_nesting(events),
        *_check_async(events),
        *_check_flows(events),
    ]


def _parse(data: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return [], [f"not UTF-8: {error}"]
    stripped = text.strip()
    candidates = [stripped]
    if stripped.startswith("["):
        candidates.append(stripped.rstrip(",") + "]")
    for candidate in candidates:
        try:
            content = json.loads(candidate, parse_constant=_refuse_constant)
        except ValueError as error:
            reason = str(error)
            continue
        events = content.get("traceEvents") if isinstance(content, dict) else content
        if not isinstance(events, list):
            return [], ["neither an array of events nor an object with traceEvents"]
        broken = [index for index, event in enumerate(events) if not isinstance(event, dict)]
        return [event for event in events if isinstance(event, dict)], [f"event {i}: not an object" for i in broken]
    return [], [f"not JSON: {reason}"]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_fields(index: int, event: dict[str, Any]) -> Iterable[str]:
    phase = event.get("ph")
    where = f"event {index} ({phase} {str(event.get('name'))[:40]!r})"
    if not isinstance(phase, str) or phase not in _PHASES:
        yield f"{where}: unknown phase"
        return
    if phase != "E" and not isinstance(event.get("name"), str):
        yield f"{where}: no name"
    if phase != "M" and not _is_number(event.get("ts")):
        yield f"{where}: ts is not a number"
    if phase in "BEXbestf" and not {"pid", "tid"} <= event.keys():
        yield f"{where}: no pid or tid"
    if phase == "X" and not (_is_number(event.get("dur")) and event["dur"] >= 0):
        yield f"{where}: dur is not a number of at least 0"
    if phase in "benstf" and not event.get("id") and not event.get("id2"):
        yield f"{where}: no id"
    if phase in "ben" and not event.get("cat"):
        yield f"{where}: async events need a category"
    if phase == "i" and event.get("s", "t") not in {"g", "p", "t"}:
        yield f"{where}: scope is not g, p or t"
    if phase == "C" and not (event.get("args") and all(map(_is_number, event["args"].values()))):
        yield f"{where}: a counter's args are not all numbers"
    args = event.get("args")
    if phase == "M" and event.get("name") in _METADATA and not isinstance(args, dict):
        yield f"{where}: metadata without args"
    if args is not None and not isinstance(args, dict):
        yield f"{where}: args are not an object"


def _spans_by_lane(events: Sequence[dict[str, Any]]) -> tuple[dict[Lane, list[tuple[float, float, str]]], list[str]]:
    """All complete spans and pairs of begin and end, by lane."""
    lanes: dict[Lane, list[tuple[float, float, str]]] = {}
    stacks: dict[Lane, list[dict[str, Any]]] = {}
    problems = []
    for event in sorted((e for e in events if e["ph"] in "BEX"), key=lambda e: e["ts"]):
        lane = (event["pid"], event["tid"])
        if event["ph"] == "X":
            lanes.setdefault(lane, []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
        elif event["ph"] == "B":
            stacks.setdefault(lane, []).append(event)
        else:
            stack = stacks.get(lane)
            if not stack:
                problems.append(f"lane {lane}: an end at {event['ts']} without a begin")
                continue
            begun = stack.pop()
            if "name" in event and event["name"] != begun["name"]:
                problems.append(f"lane {lane}: {begun['name']!r} is ended by {event['name']!r} at {event['ts']}")
            lanes.setdefault(lane, []).append((begun["ts"], event["ts"], begun["name"]))
    problems += [
        f"lane {lane}: {begun['name']!r} begins at {begun['ts']} and never ends"
        for lane, s in stacks.items()
        for begun in s
    ]
    return lanes, problems


#: Times are printed with three decimals of a microsecond; a sum of two may be off by less than half of the last.
_ROUNDING_US = 0.0005


def _check_nesting(events: Sequence[dict[str, Any]]) -> list[str]:
    lanes, problems = _spans_by_lane(events)
    for lane, spans in lanes.items():
        spans.sort(key=lambda span: (span[0], -span[1]))
        stack: list[tuple[float, float, str]] = []
        for span in spans:
            while stack and stack[-1][1] <= span[0] + _ROUNDING_US:
                stack.pop()
            if stack and span[1] > stack[-1][1] + _ROUNDING_US:
                problems.append(
                    f"lane {lane}: {span[2]!r} ({span[0]} to {span[1]}) sticks out of {stack[-1][2]!r} "
                    f"({stack[-1][0]} to {stack[-1][1]})"
                )
            stack.append(span)
    return problems


def _check_async(events: Sequence[dict[str, Any]]) -> list[str]:
    problems = []
    open_by_id: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for event in sorted((e for e in events if e["ph"] in "be"), key=lambda e: e["ts"]):
        key = (event["cat"], str(event.get("id") or event.get("id2")))
        stack = open_by_id.setdefault(key, [])
        if event["ph"] == "b":
            stack.append(event)
        elif not stack:
            problems.append(f"async {key}: an end of {event['name']!r} at {event['ts']} without a begin")
        else:
            begun = stack.pop()
            if begun["name"] != event["name"]:
                problems.append(f"async {key}: {begun['name']!r} is ended by {event['name']!r} at {event['ts']}")
    problems += [f"async {key}: {begun['name']!r} never ends" for key, stack in open_by_id.items() for begun in stack]
    return problems


def _merged(spans: Sequence[tuple[float, float, str]]) -> tuple[list[float], list[float]]:
    """Starts and ends of the stretches that spans cover."""
    starts: list[float] = []
    ends: list[float] = []
    for start, end, _ in sorted(spans):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _check_flows(events: Sequence[dict[str, Any]]) -> list[str]:
    covered = {lane: _merged(spans) for lane, spans in _spans_by_lane(events)[0].items()}
    problems = []
    started: dict[tuple[Any, Any, Any], float] = {}
    finished: set[tuple[Any, Any, Any]] = set()
    for event in sorted((e for e in events if e["ph"] in "sf"), key=lambda e: (e["ts"], e["ph"] == "f")):
        key = (event.get("cat"), event["name"], str(event.get("id")))
        lane = (event["pid"], event["tid"])
        starts, ends = covered.get(lane, ([], []))
        position = bisect_right(starts, event["ts"]) - 1
        if position < 0 or event["ts"] > ends[position]:
            problems.append(f"flow {key}: no span of lane {lane} encloses its {event['ph']} at {event['ts']}")
        if event["ph"] == "s":
            started[key] = event["ts"]
        elif key not in started:
            problems.append(f"flow {key}: finishes at {event['ts']} without a start before")
        else:
            finished.add(key)
    problems += [f"flow {key}: starts and never finishes" for key in started.keys() - finished]
    return problems
