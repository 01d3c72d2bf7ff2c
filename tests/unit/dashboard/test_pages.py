"""What the pages are made of, without a browser."""

import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tlkit.collector.analysis import Analysis, analyze
from tlkit.collector.reports import figures, figures_data, figures_device
from tlkit.collector.reports.axes import Axis
from tlkit.collector.reports.summary import summarize
from tlkit.collector.reports.svg import to_svg
from tlkit.dashboard.app import page, pages_of
from tlkit.dashboard.other_runs import OtherRuns
from tlkit.dashboard.pages import data
from tlkit.dashboard.run_header import describe_pulse, describe_run
from tlkit.dashboard.source import Source

from ..collector.test_device import kernel, kineto, launch
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


def test_sliders_stand_where_the_address_has_them(slow: Analysis) -> None:
    """With the answer; of a live run without, which the browser asks for: its block stays as it is when steps come."""
    search = "?what-if=data%3A50%2Cstraggler%3Dnone%2Cbandwidth%3Ax%2C%3Cb%3E"
    shown = str(page(Source(slow), "verdict", search, "light"))
    assert "value=50" in shown
    assert "value=['straggler=none']" in shown
    assert "A step would take" in shown
    assert "<b>" not in shown
    live = str(page(Source(slow, is_live=True), "verdict", search, "light"))
    assert "value=50" in live
    assert "A step would take" not in live


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


def test_a_comparison_begins_with_what_changed(slow: Analysis) -> None:
    """And with what limits it: the two runs read different input."""
    shown = str(page(Source(slow, others=OtherRuns([str(SAMPLES / "healthy")], None)), "compare", "", "light"))
    assert re.search(
        r"A step takes 8\.7 ms longer than in healthy \(\+10\.1%\)\. The parts .*: backward -24\.3 ms, ", shown
    )
    assert shown.index("times as much input") < shown.index("The two runs")
    same = str(page(Source(slow, others=OtherRuns([str(SAMPLES / "slow-rank")], None)), "compare", "", "light"))
    assert "A step takes as long as in slow-rank" in same


def test_exposed_time_has_groups_that_say_something(slow: Analysis) -> None:
    """By kind and size where neither tensors nor callers are known; and not by process set where there is one."""
    shown = str(page(Source(slow), "communication", "", "light"))
    assert "href='/communication?by=kind'" in shown
    assert "process+set" not in shown
    assert "allreduce of 298 kB" in str(page(Source(slow), "communication", "?by=kind", "light"))


def test_two_samples_of_a_rank_are_no_curve(slow: Analysis) -> None:
    """However many ranks there are; what stands still is said in numbers that can be read."""
    found = {item.name: item for item in figures_device.counters(slow)}
    assert found["process cpu"].figure is None
    assert found["host memory used"].words == "1.07 GB to 1.09 GB"
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


def test_of_many_hosts_the_slowest_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 45 hosts 40 are offered; names in the header are in the order of their numbers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import many_ranks

    monkeypatch.setattr(many_ranks, "RANKS_A_HOST", 2)
    begun_ns = time.monotonic_ns()
    for number in range(90):
        rank = many_ranks.Rank(tmp_path, number, 90, begun_ns)
        for step in range(12):
            start_ns = begun_ns + step * 100_000_000
            forward_ns = (50 if number == 85 else 20) * 1_000_000
            rank.step(step, start_ns, start_ns + 100_000_000, [1_000_000, forward_ns, 20_000_000])
        with rank.path.open("a") as file:
            file.write(rank.form.finish(12, 0))
    analysis = analyze(tmp_path)
    shown = str(page(Source(analysis), "ranks", "", "light"))
    offered = re.findall(r"host=(host-\d+)", shown)

    assert analysis.verdict.ranks == (85,)
    assert len(offered) == 40
    assert offered[0] == "host-42"
    assert "90 ranks on host-0, host-1, host-2 and 42 more hosts" in describe_run(analysis)


def test_tables_of_many_ranks_say_what_they_leave_out(slow: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not listed" not in str(page(Source(slow), "data", "", "light"))
    monkeypatch.setattr(data, "MAX_WORKERS", 1)
    headings = re.findall(r"H2\('([^']*)'", str(page(Source(slow), "data", "", "light")))
    assert sum("; 1 more are not listed" in heading for heading in headings) == 2


@pytest.mark.parametrize(
    ("longest_ns", "said"),
    [
        (9_150_000, "9.2 ms"),
        (1_500_000_000, "1.50 s"),
        (2_000_000_000, "2.0 s"),
        (7200 * 10**9, "2.0 h"),
        (8 * 86_400 * 10**9, "8.0 days"),
    ],
)
def test_the_header_tells_short_runs_from_none(slow: Analysis, longest_ns: int, said: str) -> None:
    spans = slow.trace.spans.iloc[:1].assign(start_ns=0, dur_ns=longest_ns)
    cut = replace(slow, facts=replace(slow.facts, trace=replace(slow.trace, spans=spans)))

    assert f" · {said}, " in describe_run(cut)


def test_the_legend_of_two_runs_is_not_cut(slow: Analysis) -> None:
    """Names of files are; the table above has them in full."""
    shown = str(page(Source(slow, others=OtherRuns([str(SAMPLES / "healthy")], None)), "compare", "", "light"))
    (chart,) = re.findall(r"<svg.*?</svg>", shown, re.DOTALL) or [""]

    assert ">before (healthy): median" in chart
    assert ">now: median" in chart


def profiles(folder: Path, steps: int, ranks: int = 2) -> list[Path]:
    """Profiles of GPUs, a file a rank: in steps of 100 ms the loop waits 10 ms for its loader, and a kernel runs for 60 ms."""
    events = [
        {"cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcess.__next__", "ts": 0, "dur": 10},
        launch(10, 1), kernel("gemm", 11, 60, 1),
    ]  # fmt: skip
    paths = []
    for rank in range(ranks):
        path = kineto(folder / f"rank{rank}.json", events, steps=steps, step_ms=100)
        path.write_text(path.read_text().replace('"rank": 0', f'"rank": {rank}'))
        paths.append(path)
    return paths


def test_a_profile_shows_how_long_the_loop_waits_for_its_loader(tmp_path: Path) -> None:
    """By the loader's own name in the profile; and no empty plot of workers that it does not show."""
    source = Source(analyze(profiles(tmp_path, steps=8)))
    shown = str(page(source, "data", "", "light"))
    assert "How long the training waits for a batch" in shown
    assert "10.0%" in shown
    loading = figures_data.loading_spans(source.analysis)  # type: ignore[arg-type]
    figure = figures_data.workers(source.analysis, loading, 0)  # type: ignore[arg-type]
    assert figure is not None
    assert [trace["name"] for trace in figure["data"]] == ["the training waits"]
    assert figures_data.workers(source.analysis, loading.assign(category="other"), 0) is None  # type: ignore[arg-type]


def test_two_steps_are_no_line_and_no_distribution(tmp_path: Path) -> None:
    """Two numbers are told as two numbers; a third makes a line."""
    two, three = (Source(analyze(profiles(tmp_path, steps=steps), warm_up=0)) for steps in (2, 3))
    assert figures.strip(two.analysis) is figures.durations(two.analysis) is None  # type: ignore[arg-type]
    shown = str(page(two, "verdict", "", "light"))
    assert "Step time over the run (2 steps" in shown
    assert "step 0" in shown
    assert "step 1" in shown
    assert "How long steps take" not in str(page(two, "steps", "", "light"))
    assert figures.strip(three.analysis) is not None  # type: ignore[arg-type]
    modes = [
        {trace["mode"] for trace in figures.two_strips([("before", run), ("now", run)])["data"]}
        for run in (two.analysis, three.analysis)
        if run is not None
    ]
    assert modes == [{"markers"}, {"lines+markers"}]
    assert "How long steps take" in str(page(three, "steps", "", "light"))


def test_of_many_devices_the_idlest_are_shown_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = profiles(tmp_path, steps=4, ranks=3)
    paths[2].write_text(paths[2].read_text().replace('"dur": 60000', '"dur": 20000'))
    source = Source(analyze(paths))
    assert "Busy and idle: every device in a mean step" in str(page(source, "devices", "", "light"))
    monkeypatch.setattr(figures_device, "MAX_DEVICES", 1)
    assert "the 1 of 3 devices that are idle for longest" in str(page(source, "devices", "", "light"))
    device = source.summary().device
    assert device is not None
    assert figures_device.busy(device)["data"][0]["y"] == ["rank 2"]


def test_equal_ranks_differ_by_nothing_and_an_unknown_host_has_no_column(tmp_path: Path) -> None:
    """A profile does not say where it was recorded."""
    shown = str(page(Source(analyze(profiles(tmp_path, steps=8))), "ranks", "", "light"))
    assert "0 µs" in shown
    assert "+0.0 ms" not in shown
    assert "'host'" not in shown


def test_every_link_of_the_verdict_leads_to_a_page_that_the_run_has(tmp_path: Path) -> None:
    """Also where a profile has no steps, no loader, or nothing but communication."""
    path = kineto(tmp_path / "copies.json", [], steps=1, step_ms=1)
    copy = {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ph": "X", "pid": 0, "tid": 7}
    copies = [copy | {"ts": 1000 * at, "dur": 900, "args": {"correlation": at, "stream": 7}} for at in range(1, 60)]
    calls = [
        {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ph": "X", "pid": 1, "tid": 1, "ts": 1000 * at - 5, "dur": 4}
        | {"args": {"correlation": at}}
        for at in range(1, 60)
    ]
    path.write_text(
        json.dumps(
            {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [*copies, *calls]}
        )
    )
    seen = set()
    for source in map(
        Source, (analyze(path), analyze(horovods_own(tmp_path / "t.json")), analyze(profiles(tmp_path, 8)))
    ):
        shown = str(page(source, "verdict", "", "light"))
        pages = set(re.findall(r"href='/([a-z]+)", shown))
        assert pages <= set(pages_of(source))
        seen |= pages
    assert {"devices", "data", "timeline"} <= seen
    assert "this recording has no steps" in str(page(Source(analyze(path)), "verdict", "", "light"))
