"""What the pages are made of, without a browser."""

import os
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tlkit.collector.analysis import Analysis, analyze
from tlkit.collector.reports import figures, figures_device
from tlkit.collector.reports.axes import Axis
from tlkit.collector.reports.summary import summarize
from tlkit.collector.reports.svg import to_svg
from tlkit.dashboard.app import page, pages_of
from tlkit.dashboard.other_runs import OtherRuns
from tlkit.dashboard.run_header import describe_pulse
from tlkit.dashboard.source import Source

from ..collector.test_exposure import horovods_own, unaligned

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


@pytest.fixture(scope="module")
def slow() -> Analysis:
    return analyze(SAMPLES / "slow-rank")


def test_pages_without_content_are_not_in_the_navigation(slow: Analysis, tmp_path: Path) -> None:
    assert pages_of(Source(None)) == ("verdict", "timeline")
    assert "compare" not in pages_of(Source(slow))
    assert pages_of(Source(slow))[:6] == ("verdict", "steps", "ranks", "communication", "data", "devices")
    horovod = Source(analyze(horovods_own(tmp_path / "t.json")))
    assert pages_of(horovod) == ("verdict", "steps", "communication", "timeline")


def test_pages_say_nothing_that_the_analysis_disowns(tmp_path: Path) -> None:
    """Of Horovod's file no exposed or hidden time; without a common clock no waits and no path."""
    horovod = str(page(Source(analyze(horovods_own(tmp_path / "t.json"))), "communication", "", "light"))
    assert "is not visible in this trace" in horovod
    assert "exposed: the training" not in horovod
    assert "hidden behind computation" not in horovod
    ranks = str(page(Source(unaligned()), "ranks", "", "light"))
    assert "not aligned" in ranks
    assert "of the critical path" not in ranks
    assert "the critical path over the run" not in ranks


def test_the_slowest_rank_comes_first(slow: Analysis) -> None:
    """Without being asked for, and not as a mean that hides it."""
    shown = str(page(Source(slow), "steps", "", "light"))
    assert "Every step, by part: rank 1" in shown
    assert "rank 1 (slowest)" in shown
    assert "which hides a slow one" in str(page(Source(slow), "steps", "?rank=all", "light"))


@pytest.mark.parametrize("search", ["?rank=99", "?step=-1", "?from=9&to=1", "?from=x", "?by=%3Cb%3E", "?what=nothing", "?step=99999999999999"])  # fmt: skip
def test_any_address_shows_a_page(slow: Analysis, search: str) -> None:
    source = Source(slow)
    for name in ("verdict", "steps", "ranks", "communication", "data", "devices"):
        assert isinstance(page(source, name, search, "dark"), list)


def test_drawings_are_well_formed_and_hold_names_as_text(slow: Analysis) -> None:
    """Whatever the names are."""
    figure = figures.anatomy(slow)
    figure["data"][0]["name"] = "</svg><script>alert(1)</script>"
    figure["data"][0]["y"] = ['"><b>\x00', "&"]
    drawn = to_svg(figure, "<i>")
    root = ET.fromstring(drawn)
    assert not [element for element in root.iter() if element.tag.endswith(("script", "}b", "}i"))]


def test_two_runs_are_aligned_by_step(slow: Analysis) -> None:
    """Each point of both runs stands at the number of its step."""
    healthy = analyze(SAMPLES / "healthy")
    before, now = figures.two_strips([("before", healthy), ("now", slow)])["data"]
    for line, analysis in ((before, healthy), (now, slow)):
        assert line["x"] == analysis.facts.steps.numbers.tolist()
        assert len(line["y"]) == len(line["x"])
    assert "median 94.8 ms" in now["name"]


def test_two_samples_of_a_rank_are_no_curve(slow: Analysis) -> None:
    """However many ranks there are; what stands still is said in numbers that can be read."""
    found = {item.name: item for item in figures_device.counters(slow)}
    assert found["process cpu"].figure is None
    assert found["host memory used"].words == "1.065G to 1.092G bytes"
    assert found["forward cpu"].figure is not None


def test_axes_have_round_ticks() -> None:
    """Steps have no fractions, logarithmic axes powers of ten."""
    assert [words for _, words in Axis(550.0, 552.0, 0, 100).ticks(9, whole=True)] == ["550", "551", "552"]
    assert [words for _, words in Axis(3.0, 6.0, 0, 100, is_log=True).ticks(9)] == ["1000", "10k", "100k", "1M"]


def test_the_pulse_counts_steps_and_ranks(slow: Analysis) -> None:
    meta, steps = slow.trace.meta, slow.facts.steps
    now = meta.epoch_unix_ns + int(steps.end_ns.max()) + 7 * 10**9
    said = describe_pulse(slow, now)
    assert "newest step 7 s ago" in said
    assert "2 of 2 ranks connected" in said
    assert 9 < float(said.split(" steps/s")[0]) < 12
    assert describe_pulse(None, now) == ""


def test_a_browser_names_a_run_and_never_a_path(tmp_path: Path) -> None:
    """Named runs first, then those of the folder, newest first; a run that has come later is there."""
    folder = tmp_path / "runs"
    shutil.copytree(SAMPLES / "healthy", folder / "old")
    os.utime(folder / "old", (1, 1))
    for file in (folder / "old").iterdir():
        os.utime(file, (1, 1))
    runs = OtherRuns([str(SAMPLES / "no-fusion")], folder)
    assert runs.names() == ("no-fusion", "old")
    shutil.copytree(SAMPLES / "healthy", folder / "new")
    (folder / ".hidden").mkdir()
    (folder / "empty").mkdir()
    assert runs.names() == ("no-fusion", "new", "old")
    assert runs.analysis("new").facts.steps.count > 5
    assert runs.analysis("new") is runs.analysis("new")
    for name in ("/etc/passwd", "../runs/old", str(SAMPLES / "healthy"), "", "empty"):
        with pytest.raises(LookupError, match="there is no run"):
            runs.analysis(name)


def test_one_summary_for_all_pages(slow: Analysis) -> None:
    source = Source(slow)
    assert source.summary() is source.summary()
    assert source.summary().collectives == summarize(slow).collectives
    before = source.summary()
    source.replace(slow)
    assert source.version == 1
    assert source.summary() is not before
