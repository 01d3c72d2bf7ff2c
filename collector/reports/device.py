"""The device in a report: what it does, why it is idle, its kernels, operators and exposed collectives.

One list of tables, which the terminal, HTML and Markdown draw in their ways, and one record for JSON.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...timeline.commands.arguments import clean
from ..model.breakdown import IDLE, PARTS
from ..model.device import Device
from ..model.idle import REASONS
from ..model.kernels import KernelRow
from ..model.words import duration, shorten
from .markup import scrolling

#: Rows of a table that people read.
MAX_ROWS: Final = 6
MAX_NAME: Final = 70
#: What takes less than this share of the step has no row.
MIN_SHARE: Final = 0.005

_PARTS: Final = {
    "data": "waits for data",
    "h2d": "copies to the device that no kernel hides",
    "forward": "kernels of forward",
    "backward": "kernels of backward",
    "collective": "collectives that no kernel hides",
    "optimizer": "kernels of the optimizer",
    "other": "other kernels, copies within the device",
}
#: Reasons of idle time (idle.REASONS) in words.
REASON_WORDS: Final = {
    "launch": "idle: the host launches too slowly",
    "host-work": "idle: the host computes",
    "input": "idle: the host prepares input",
    "blocking-copy": "idle: the host is blocked in copies",
    "synchronisation": "idle: the host waits for the device",
    "collective": "idle: the host waits for a collective",
    "host-elsewhere": "idle: nothing recorded on the host",
    "queued": "nothing recorded, work was queued",
    "between-kernels": "idle: between queued kernels",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTable:
    """A table of text; the first column is left-aligned."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_terminal(self) -> RenderableType:
        """For rich."""
        table = Table(title=f"\n{self.title}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for number, name in enumerate(self.header):
            table.add_column(name, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*(Text(clean(cell)) for cell in row))
        return table

    def to_html(self, text: Callable[[str], str]) -> str:
        """Cells through `text`, which makes names of a trace harmless."""
        # Words begin in line, numbers end in line.
        kinds = [
            "" if any(row[column][:1].isdigit() for row in self.rows) else ' class="words"'
            for column in range(len(self.header))
        ]
        head = "".join(f"<th{kind}>{text(name)}</th>" for kind, name in zip(kinds, self.header, strict=True))
        lines = (
            "".join(f"<td{kind}>{text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in self.rows
        )
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<h2>{text(self.title)}</h2>{scrolling(self.title, f'<table><tr>{head}</tr>{rows}</table>')}"

    def to_markdown(self, escape: Callable[[str], str]) -> Iterator[str]:
        """Lines; cells through `escape`."""
        yield from (
            "",
            f"| {' | '.join(map(escape, (self.title, *self.header[1:])))} |",
            f"|{' --- |' * len(self.header)}",
        )
        for row in self.rows:
            yield f"| {' | '.join(map(escape, row))} |"


def device_tables(device: Device | None) -> tuple[DeviceTable, ...]:
    """What people read about a device; nothing where there is none."""
    if device is None:
        return ()
    of_what = "a step" if device.has_steps else "the recording"
    tables = [_time(device, of_what)]
    kernels = device.kernels
    facts = [
        f"{kernels.count / device.count:.0f} kernels in {of_what}, median {duration(kernels.median_ns)}",
        f"{kernels.small_ratio:.0%} below 10 µs with {kernels.small_time_ratio:.0%} of their time",
    ]
    if kernels.matrix_ratio >= MIN_SHARE:
        facts.append(f"{kernels.tensor_ratio:.0%} of the time on tensor cores, by their names")
    if kernels.recompute_ns:
        facts.append(f"{duration(kernels.recompute_ns / device.count)} of recomputation in backward")
    if kernels.by_name:
        tables.append(_kernels(device, "Kernels: " + "; ".join(facts), "kernel", kernels.by_name))
    if any(row.name != "(no operator)" for row in kernels.by_operator):
        tables.append(
            _kernels(device, "Operators by the time of the kernels that they launch", "operator", kernels.by_operator)
        )
    if device.exposed:
        tables.append(_exposed(device))
    return tuple(tables)


def _time(device: Device, of_what: str) -> DeviceTable:
    rows = [
        (_PARTS.get(part, part), float(device.breakdown.parts_ns[part].sum()) / device.count, "")
        for part in PARTS
        if part != IDLE
    ]
    for reason in REASONS:
        cause = device.causes.get(reason)
        names = [*cause.calls[:1], *cause.operators[:1]] if cause is not None else []
        where = ", ".join(shorten(name, MAX_NAME) for name, _ in names)
        rows.append((REASON_WORDS[reason], device.mean_idle_ns(reason), where))
    shown = [row for row in rows if row[1] >= MIN_SHARE * device.mean_ns]
    return DeviceTable(
        title=f"The device: what {of_what} of {duration(device.mean_ns)} goes to",
        header=("part", "mean", "share", "the host meanwhile"),
        rows=tuple((name, duration(ns), f"{ns / max(device.mean_ns, 1.0):.1%}", where) for name, ns, where in shown),
    )


def _kernels(device: Device, title: str, name: str, rows: Sequence[KernelRow]) -> DeviceTable:
    per = "a step" if device.has_steps else "in all"
    return DeviceTable(
        title=title,
        header=(name, f"count {per}", f"time {per}", "share"),
        rows=tuple(
            (
                shorten(row.name, MAX_NAME),
                f"{row.count / device.count:.4g}",
                duration(row.total_ns / device.count),
                f"{row.share:.1%}",
            )
            for row in rows[:MAX_ROWS]
        ),
    )


def _exposed(device: Device) -> DeviceTable:
    per = "a step" if device.has_steps else "in all"
    return DeviceTable(
        title="Collectives on the device",
        header=("kind", "bytes", f"count {per}", f"time {per}", "exposed", "waiting (estimate)"),
        rows=tuple(
            (
                f"{row.kind} {row.caller}".rstrip(),
                f"{row.nbytes:,}" if row.nbytes >= 0 else "unknown",
                f"{row.count / device.count:.4g}",
                duration(row.total_ns / device.count),
                duration(row.exposed_ns / device.count),
                duration(row.waiting_ns / device.count) if row.nbytes >= 0 else "unknown",
            )
            for row in device.exposed[:MAX_ROWS]
        ),
    )


def device_record(device: Device | None) -> dict[str, Any] | None:
    """The device for JSON: times in ns of a mean step of a rank, or of the recording where there are no steps."""
    if device is None:
        return None
    kernels, count = device.kernels, device.count
    return {
        "has_steps": device.has_steps,
        "mean_ns": round(device.mean_ns),
        "parts_ns": {part: round(float(ns.sum()) / count) for part, ns in device.breakdown.parts_ns.items()},
        "idle_ns": {reason: round(device.mean_idle_ns(reason)) for reason in REASONS},
        "idle_causes": {
            reason: {
                "calls_ns": {name: round(ns / count) for name, ns in cause.calls},
                "operators_ns": {name: round(ns / count) for name, ns in cause.operators},
                "annotation": cause.annotation,
            }
            for reason, cause in device.causes.items()
        },
        "copies_ns": {way: round(ns / count) for way, ns in device.copies_ns.items()},
        "exposed_copies_ns": {way: round(ns / count) for way, ns in device.exposed_copies_ns.items()},
        "kernels": {
            "count": round(kernels.count / count, 1),
            "total_ns": round(kernels.total_ns / count),
            "median_ns": kernels.median_ns,
            "small_ratio": round(kernels.small_ratio, 4),
            "small_time_ratio": round(kernels.small_time_ratio, 4),
            "matrix_ratio": round(kernels.matrix_ratio, 4),
            "tensor_core_ratio": round(kernels.tensor_ratio, 4),
            "recompute_ns": round(kernels.recompute_ns / count),
            "by_name": [_row(row, count) for row in kernels.by_name],
            "by_operator": [_row(row, count) for row in kernels.by_operator],
        },
        "collectives": [
            {
                "kind": row.kind,
                "bytes": row.nbytes,
                "caller": row.caller,
                "count": row.count,
                "total_ns": row.total_ns,
                "exposed_ns": row.exposed_ns,
                "waiting_estimate_ns": row.waiting_ns,
            }
            for row in device.exposed
        ],
    }


def _row(row: KernelRow, count: int) -> dict[str, Any]:
    return {
        "name": row.name,
        "count": round(row.count / count, 1),
        "total_ns": round(row.total_ns / count),
        "share": round(row.share, 4),
    }
