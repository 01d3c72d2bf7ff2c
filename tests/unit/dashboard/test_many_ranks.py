"""What pages show of many ranks, and of ranks and steps that are all alike: what is looked for, and no noise."""

import re

import pytest

from tests.traces import make_trace, uniform
from tlkit.collector.analysis import Analysis, analyze
from tlkit.collector.reports import figures, figures_ranks
from tlkit.collector.reports.summary import summarize, waited_for
from tlkit.dashboard.app import page
from tlkit.dashboard.components import MAX_ROWS, long_table
from tlkit.dashboard.source import Source
from tlkit.dashboard.timeline.rows import CATEGORIES
from tlkit.dashboard.timeline.run import Run

from ..collector.test_diagnosis import HEALTHY, changed, jittered

RANKS = 24


@pytest.fixture(scope="module")
def many() -> Analysis:
    """Rank 17 is slow."""
    return analyze(make_trace(jittered(changed(RANKS, 12, [17], forward=30))))


def shown(analysis: Analysis, name: str) -> str:
    return re.sub(r"\s+", " ", str(page(Source(analysis), name, "", "light")))


def test_of_many_ranks_the_slowest_and_the_quickest_have_bars(many: Analysis) -> None:
    """Slowest first, so that findings and sliders below need no scrolling past all that are alike."""
    names = figures.anatomy(many)["data"][0]["y"]

    assert len(names) == len(set(names)) == figures.MAX_BARS
    assert names[0] == "rank 17"
    assert f"the {figures.QUICKEST} quickest of {RANKS} ranks" in figures.anatomy_title(many)
    assert figures.anatomy_title(many) in shown(many, "verdict")


def test_a_long_table_begins_with_what_is_looked_for(many: Analysis) -> None:
    """The rest is there on demand; a few more rows are not worth a click."""
    said = shown(many, "ranks")

    assert f"Summary('{RANKS - MAX_ROWS} more')" in said
    assert said.index("rank 17") < said.index("rank 3") < len(said)
    assert len(long_table(("a",), [(str(row),) for row in range(MAX_ROWS + 2)])) == 1
    first, rest = long_table(("a",), [(str(row),) for row in range(MAX_ROWS * 2)], [MAX_ROWS + 1])
    assert "marked" not in str(first)
    assert str(rest).count("marked") == 1


def test_who_is_waited_for_is_marked_whatever_else_is_found() -> None:
    """A slow loader on every rank is nobody's fault and hides no straggler."""
    steps = changed(8, 30, [5], forward=60)
    everywhere = [[[(part, 40.0 if part == "data" else ms) for part, ms in step] for step in rank] for rank in steps]
    analysis = analyze(make_trace(jittered(everywhere)))

    assert {item.class_ for item in analysis.findings} >= {"straggler", "data"}
    assert waited_for(analysis) == {5}
    assert "the others wait for it" in shown(analysis, "ranks")


def test_ranks_that_are_alike_are_not_put_beside_each_other(many: Analysis) -> None:
    assert figures_ranks.waterfall(summarize(many)) is not None
    alike = analyze(make_trace(uniform(4, 12, HEALTHY)))

    assert figures_ranks.waterfall(summarize(alike)) is None
    assert "beside a typical rank" not in shown(alike, "verdict")


def test_what_slowed_a_step_comes_before_who_waited() -> None:
    """The others' wait is as long, and on whichever rank happens to wait longest."""
    said = shown(analyze(make_trace(jittered(changed(8, 40, [5], every=8, forward=60)))), "steps")

    assert len(re.findall(r"'forward on rank 5 \(\+\d+\.\d ms\), negotiate \(exposed\) on rank \d", said)) >= 3


def test_steps_that_are_alike_are_no_distribution() -> None:
    """Their differences, of which none matters, are not stretched over the whole chart."""
    figure = figures.durations(analyze(make_trace(uniform(2, 40, HEALTHY))))

    assert figure is not None
    counts = figure["data"][0]["y"]
    assert max(counts) == sum(counts)
    assert len(counts) >= 10
    low, *_, high = figure["data"][0]["x"]
    assert (high - low) / low > figures.MIN_SPREAD


def test_the_legend_has_what_is_drawn(many: Analysis) -> None:
    """And no colours that nobody will find."""
    run = Run(many)
    rows = run.rows
    drawn = {int(category) for category in rows.category[: len(rows.span)]}

    assert set(run.categories) == drawn
    assert 2 < len(drawn) < len(CATEGORIES)
