"""Writes XPlanes for tests: planes of lines of events, as xplane.proto has them."""

from dataclasses import dataclass, field
from typing import Any

from tlkit.timeline.read.protobuf import number, real, text


@dataclass
class Event:
    """Times in ns."""

    name: str
    start: int
    dur: int
    stats: dict[str, Any] = field(default_factory=dict)


def plane(
    name: str, lines: dict[str, list[Event]], stats: dict[str, Any] | None = None, timestamp_ns: int = 1000
) -> bytes:
    """A plane as bytes, with its names behind its lines, as the profilers write it."""
    names: dict[str, int] = {}
    stat_names: dict[str, int] = {}

    def stat(key: str, value: Any) -> bytes:
        written = number(1, stat_names.setdefault(key, len(stat_names) + 1))
        if isinstance(value, float):
            return written + real(2, value)
        if isinstance(value, int):
            return written + (number(4, value) if value < 2**63 else number(3, value))
        if value.startswith("ref:"):
            return written + number(7, stat_names.setdefault(value[4:], len(stat_names) + 1))
        return written + text(5, value)

    body = text(2, name)
    for row, (line, events) in enumerate(lines.items()):
        told = number(1, row + 1) + text(2, line) + number(3, timestamp_ns)
        for event in events:
            told += text(
                4,
                number(1, names.setdefault(event.name, len(names) + 1))
                + number(2, event.start * 1000)
                + number(3, event.dur * 1000)
                + b"".join(text(4, stat(key, value)) for key, value in event.stats.items()),
            )
        body += text(3, told)
    own = b"".join(text(6, stat(key, value)) for key, value in (stats or {}).items())
    body += b"".join(text(4, number(1, key) + text(2, number(1, key) + text(2, said))) for said, key in names.items())
    body += b"".join(
        text(5, number(1, key) + text(2, number(1, key) + text(2, said))) for said, key in stat_names.items()
    )
    return text(1, body + own)


def environment(start_unix_ns: int) -> bytes:
    """What says when the profile began."""
    return plane("Task Environment", {}, {"profile_start_time": start_unix_ns})


def host(name: str) -> bytes:
    """Who wrote the file."""
    return text(4, name)


def steps(count: int, length: int = 1000, first: int = 0) -> list[Event]:
    """Annotations of steps, 100 ns apart."""
    return [Event("train", first + n * (length + 100), length, {"step_num": n, "_r": 1}) for n in range(count)]
