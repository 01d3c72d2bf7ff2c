"""What the plots of reports and pages draw: the numbers of the analysis, and no others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tlkit.collector import analyze
from tlkit.collector.analysis import Analysis
from tlkit.collector.model.memory import find_memory
from tlkit.collector.reports import figures, figures_communication, figures_data, figures_memory, figures_ranks
from tlkit.collector.reports.summary import summarize
from tlkit.timeline import open_trace

from .runs import even, load, record, straggling
from .test_device import kineto
from .test_gaps_and_memory import EVENTS

MS = 1_000_000


@pytest.fixture(scope="module")
def slow_second() -> Analysis:
    """Four ranks, of which rank 1 works 40 ms longer."""
    return analyze(record(straggling(even(4, 25, 2), 1, 40 * MS)))


def test_many_steps_are_means_of_neighbours_and_none_is_lost() -> None:
    """The last column is of the steps that are left over; few steps stay as they are."""
    values = np.arange(2 * 1001).reshape(2, 1001)
    columns, width = figures.in_columns(values, most=100)

    assert (columns.shape, width) == ((2, 91), 11)
    assert columns[0, 0] == 5.0
    assert (columns[:, :-1].sum(axis=1) * width + columns[:, -1] * (1001 % width or width)).tolist() == pytest.approx(
        values.sum(axis=1).tolist()
    )
    few, one = figures.in_columns(values[:, :50], most=100)
    assert (few.tolist(), one) == (values[:, :50].tolist(), 1)


def test_the_map_of_ranks_shows_what_is_chosen(slow_second: Analysis) -> None:
    """Own work, waits, or a part of the step, a row for each rank."""
    maps = {what: figures.heatmap(slow_second, what)["data"][0] for what in ("own work", "waits", "forward")}
    own, waits, forward = (np.array(maps[what]["z"]) for what in ("own work", "waits", "forward"))

    assert maps["own work"]["y"] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert maps["own work"]["x"] == slow_second.facts.steps.numbers.tolist()
    assert (own[1] - own[0]).tolist() == pytest.approx([40.0] * own.shape[1])
    assert (waits[0] - waits[1]).tolist() == pytest.approx([40.0] * own.shape[1])
    assert forward.sum() == pytest.approx(slow_second.facts.part("forward").sum() / 1e6)
    for what in maps:
        values = figures_ranks.values_of(slow_second, what)
        assert (values / 1e6).tolist() == [pytest.approx(row) for row in maps[what]["z"]]


def test_the_bars_of_the_critical_path_add_up_to_it(slow_second: Analysis) -> None:
    """Rank 1, for which the others wait, has most of it."""
    bars = figures.critical_path(slow_second)["data"]
    by_rank: dict[str, float] = {}
    for bar in bars:
        for rank, share in zip(bar["y"], bar["x"], strict=True):
            by_rank[rank] = by_rank.get(rank, 0.0) + share

    assert sum(by_rank.values()) == pytest.approx(100, abs=0.5)
    assert max(by_rank, key=lambda rank: by_rank[rank]) == "rank 1"


def test_many_ranks_are_drawn_by_blocks_and_a_block_by_ranks() -> None:
    """On one host, that of neighbours; a chosen one shows its ranks."""
    analysis = analyze(record(even(80, 6)))
    blocks = figures_ranks.groups_of(analysis)
    first = figures_ranks.groups_of(analysis, blocks[0].name)

    assert sorted(row for block in blocks for row in block.rows) == list(range(80))
    assert len(blocks) < 80
    assert [group.name for group in first] == [f"rank {row}" for row in blocks[0].rows]


def test_costs_of_collectives_are_points_and_a_line_through_them() -> None:
    """1 ms and a gigabyte a second, which the name of the line says; two sizes are too few for a line."""
    sizes = np.array([1_000_000, 4_000_000, 16_000_000, 64_000_000])
    plan = even(2, 25, 4)
    plan = replace(plan, nbytes=np.tile(sizes, (25, 1)), run=np.tile(MS + sizes, (25, 1)))
    analysis = analyze(record(plan))
    drawn = figures_communication.costs(analysis, summarize(analysis).lines)
    assert drawn is not None
    points, line = drawn["data"]

    assert dict(zip(points["x"], points["y"], strict=True)) == pytest.approx(
        {int(size): 1 + size / 1e6 for size in sizes}
    )
    assert line["name"] == "allreduce: 1 ms + 1 GB/s"
    low, high = drawn["layout"]["xaxis"]["range"]
    assert 10**low < sizes.min() < sizes.max() < 10**high
    of_two = analyze(record(replace(plan, nbytes=np.tile(sizes[[0, 0, 1, 1]], (25, 1)))))
    assert figures_communication.costs(of_two, ()) is None


def test_batches_that_lie_ready_are_counted_when_the_training_asks() -> None:
    """None where the workers are too slow, some where they are quick, and no plot without a loader."""
    starving = figures_data.queue(analyze(load(30, compute=10 * MS, busy=50 * MS, workers=1)))
    plenty = figures_data.queue(analyze(load(30, compute=50 * MS, busy=10 * MS, workers=2)))
    assert starving is not None
    assert plenty is not None

    assert set(starving["data"][0]["y"]) == {0.0}
    assert min(plenty["data"][0]["y"]) >= 1.0
    assert figures_data.queue(analyze(record(even(2, 12)))) is None


def test_the_plot_of_memory_has_its_peak(tmp_path: Path) -> None:
    """And what is reserved beside what is allocated."""
    trace = open_trace(kineto(tmp_path / "t.json", EVENTS, steps=10, step_ms=40))
    analysis = analyze(trace, warm_up=0)
    (found,) = find_memory(trace, analysis.facts.steps)
    drawn = figures_memory.memory(analysis, found)
    lines = {each["name"]: each for each in drawn["data"]}

    assert list(lines) == ["allocated", "reserved", "peak 1.1 kB"]
    assert max(lines["allocated"]["y"]) == pytest.approx(1.1)
    assert max(lines["reserved"]["y"]) == pytest.approx(2.2)
    assert lines["peak 1.1 kB"]["y"] == [pytest.approx(1.1)]
    assert drawn["layout"]["yaxis"]["title"]["text"] == "kB"
