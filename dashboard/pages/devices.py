"""What devices do and why they are idle; counters of devices, processors, memory and network."""

from collections.abc import Sequence
from typing import Any, Final

from dash import html

from ...collector.model.device import Device
from ...collector.model.gaps import find_gaps, find_lead
from ...collector.model.memory import Memory, find_memory
from ...collector.model.words import duration, nbytes_words, shorten
from ...collector.reports import figures_device, figures_gaps, figures_memory
from ...collector.reports.device import MAX_NAME, device_tables
from ..components import card, chart, drawn, empty, link, table, text
from ..words import explain
from . import View
from .steps import ordered_choices

MAX_PLOTS: Final = 36
MAX_MEMORIES: Final = 64
_NODE: Final = "autograd::engine::evaluate_function: "


def layout(view: View) -> Any:
    """The page."""
    device = view.summary.device
    counters = figures_device.counters(view.analysis, view.theme) if len(view.analysis.trace.counters) else ()
    memories = find_memory(view.analysis.trace, view.analysis.facts.steps)
    ranks = _ranks(device, memories)
    asked = view.number("rank")
    rank = asked if asked in ranks else ranks[0] if ranks else None
    if device is None and not counters:
        return empty(
            "Devices",
            "This trace has no counters. The runtime records them once a second (HOROVOD_TIMELINE and tl-run).",
        )
    moving = [item for item in counters if item.figure is not None][:MAX_PLOTS]
    still = [item for item in counters if item not in moving]
    of_what = "a mean step" if device is None or device.has_steps else "the recording, which has no steps"
    return [
        chart(
            figures_device.busy(device, view.theme) if device is not None else None,
            f"Busy and idle: {_which(device)} in {of_what}",
            "Grey is idle time, by the host's activity meanwhile.",
        ),
        html.Div([card(text(item.title), table(item.header, item.rows)) for item in device_tables(device)])
        if device is not None
        else None,
        ordered_choices(view, "devices", view.query.get("rank", ""), ranks, "most idle" if device else "most memory"),
        _gaps(view, device, rank),
        _lead(view, rank),
        _memory(view, memories, rank),
        html.Section(
            [
                html.H2("Counters that move"),
                html.P("Every second step is shaded.", className="soft"),
                html.Div([_small(item) for item in moving], className="multiples"),
            ],
            className="card",
            **{"aria-label": "counters"},
        )
        if moving
        else None,
        card(
            "Counters that are constant, or have too few samples",
            table(("counter", "value"), [(i.name, i.words) for i in still]),
        )
        if still
        else None,
        explain("idle", "launch", "gap", "allocated", "reserved", "starved", "exposed", "step"),
    ]


def _which(device: Device | None) -> str:
    count, shown = 0 if device is None else len(device.steps.ranks), figures_device.MAX_DEVICES
    return "every device" if count <= shown else f"the {shown} of {count} devices that are idle for longest"


def _ranks(device: Device | None, memories: Sequence[Memory]) -> list[int]:
    """The ranks that can be looked at one by one: the most idle one first, else that with most memory."""
    if device is None:
        return list(dict.fromkeys(memory.rank for memory in memories))
    idle = sum(ns.sum(axis=1) for ns in device.idle_ns.values())
    return [rank for _, rank in sorted(zip((-idle).tolist(), device.steps.ranks, strict=True))]


def _gaps(view: View, device: Device | None, rank: int | None) -> Any:
    found = (
        None
        if device is None or rank is None
        else find_gaps(view.analysis.trace, device, rank, view.source.launches(rank))
    )
    if device is None or found is None:
        return None
    steps = max(device.steps.start_ns.shape[1], 1)
    return chart(
        figures_gaps.gaps(found, steps, has_steps=device.has_steps, theme=view.theme),
        f"Gaps of rank {rank}'s device, by length",
        "Idle time that lies in gaps of each length, by what the host does meanwhile; in brackets how many gaps there are. "
        "Many short ones: small kernels, or a host that launches too slowly (CUDA graphs and torch.compile help). "
        "Few long ones: the host waits, reads or computes.",
    )


def _lead(view: View, rank: int | None) -> Any:
    found = None if rank is None else find_lead(rank, view.source.launches(rank))
    if found is None:
        return None
    return chart(
        figures_gaps.lead(view.analysis, found, view.theme),
        f"How far the host is ahead of rank {rank}'s device: {duration(found.all_median_ns)} (median)",
        "From the begin of the call that launches a kernel or copy to its start on the device. A few µs: the queue is empty, and "
        "the device waits for the host. More: work is queued, and the host has time.",
    )


def _memory(view: View, memories: Sequence[Memory], rank: int | None) -> Any:
    if not memories:
        return None
    mine = next((memory for memory in memories if memory.rank == rank), memories[0])
    figure = figures_memory.memory(view.analysis, mine, view.theme) if len(mine.at_ns) > 2 else None  # noqa: PLR2004
    rows = [
        (
            link(f"rank {memory.rank}", "devices", rank=memory.rank),
            memory.counter.removesuffix(" bytes"),
            nbytes_words(memory.peak_bytes),
            nbytes_words(float(memory.reserved.max())) if len(memory.reserved) else "-",
            f"{memory.at_ns[memory.peak] / 1e9:.3f} s",
            memory.step if memory.step >= 0 else "-",
            nbytes_words(memory.rise_bytes),
        )
        for memory in memories[:MAX_MEMORIES]
    ]
    columns = ("rank", "memory", "peak", "reserved", "at", "in step", "rose by, until then")
    grown = [
        (shorten(name.removeprefix(_NODE), MAX_NAME), nbytes_words(nbytes), f"{nbytes / mine.rise_bytes:.0%}")
        for name, nbytes in mine.grown
    ]
    since = "since the step's lowest value" if mine.step >= 0 else "since the lowest value before"
    return html.Div(
        [
            chart(figure, f"Memory of rank {mine.rank}: {mine.counter.removesuffix(' bytes')}"),
            card(
                f"What allocated the {nbytes_words(mine.rise_bytes)} that came until the peak of rank {mine.rank}, {since}",
                table(("operator", "stays", "share"), grown),
            )
            if grown
            else None,
            card("Peaks of memory, highest first", table(columns, rows)),
        ]
    )


def _small(item: figures_device.Small) -> Any:
    assert item.figure is not None
    label = f"{item.name}, {item.unit}" if item.unit else item.name
    return html.Figure([html.Figcaption(text(label)), drawn(item.figure, f"{text(label)}: {item.words}")])
