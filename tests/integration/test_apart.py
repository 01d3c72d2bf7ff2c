"""Large runs that another process reads and analyses: this one has what it would have found itself, and less memory."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from tlkit.collector import apart, kept, make_report
from tlkit.collector.analysis import Analysis, analyze
from tlkit.collector.apart import analyze_apart
from tlkit.collector.kept import analyze_kept
from tlkit.dashboard.run_header import describe_trace
from tlkit.timeline import open_trace
from tlkit.timeline.errors import UsageError
from tlkit.timeline.read import open as opening
from tlkit.timeline.read.cache import is_mapped

RANKS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are just large enough to be kept."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import kineto_like

    folder = tmp_path_factory.mktemp("run")
    for rank in range(RANKS):
        kineto_like.write(folder / f"rank{rank}.json", 1_500_000, rank=rank, world_size=RANKS, seed=rank)
    return folder


@pytest.fixture(autouse=True)
def _large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(apart, "MIN_NBYTES", 0)


def said(analysis: Analysis) -> str:
    """All that reports say."""
    return json.dumps(make_report(analysis), default=str)


def read_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever this process reads files."""
    times: list[int] = []
    read_files = opening._read_files

    def count(*args: object) -> object:
        times.append(1)
        return read_files(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "_read_files", count)
    return times


def test_another_process_reads_and_analyses(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one maps what was kept, knows how far it has come, and says the same; the next time nobody reads."""
    times = read_here(monkeypatch)
    progress: list[tuple[int, int]] = []
    known: list[tuple[str, str]] = []
    found = analyze_apart(
        str(run),
        progress=lambda done, total: progress.append((done, total)),
        describe=describe_trace,
        on_described=known.extend,
    )

    assert times == []
    assert is_mapped(found.trace.spans["start_ns"].to_numpy())
    assert dict(known)["ranks"].startswith(f"{RANKS} ranks")
    assert max(done for done, _ in progress) > 0
    assert multiprocessing.active_children() == []
    monkeypatch.setattr(apart._Other, "begin", pytest.fail)
    assert said(analyze_apart(str(run))) == said(found)
    assert times == []
    monkeypatch.setenv("TLKIT_CACHE_DIR", "")
    assert said(analyze(str(run))) == said(found)


@pytest.mark.parametrize("is_new", [False, True])
def test_it_analyses_what_was_only_read(run: Path, monkeypatch: pytest.MonkeyPatch, *, is_new: bool) -> None:
    """Of a run whose columns are kept this process neither reads the files nor analyses, whenever the other one begins."""
    open_trace(str(run))
    times = read_here(monkeypatch)
    known: list[tuple[str, str]] = []
    with monkeypatch.context() as here:
        here.setattr(kept, "analyze", pytest.fail)
        found = analyze_apart(str(run), describe=describe_trace, on_described=known.extend, is_new=is_new)

    assert times == []
    assert is_mapped(found.trace.spans["start_ns"].to_numpy())
    assert dict(known)["ranks"].startswith(f"{RANKS} ranks")
    assert multiprocessing.active_children() == []
    assert said(found) == said(analyze(str(run)))


def test_it_ends_where_the_analysis_was_kept_after_all(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a process that began because everything seemed to be new."""
    before = said(analyze_kept(str(run)))
    monkeypatch.setattr(apart._Other, "finish", pytest.fail)

    assert said(analyze_apart(str(run), is_new=True)) == before
    assert multiprocessing.active_children() == []


def test_its_error_is_this_ones(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without reading the files again to find the same."""
    times = read_here(monkeypatch)
    with pytest.raises(UsageError, match="77"):
        analyze_apart(str(run), ranks=[77])

    assert times == []


def test_a_process_that_dies_is_replaced_by_this_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = read_here(monkeypatch)
    monkeypatch.setattr(apart, "_work", os._exit)  # which is given no number, and so fails

    assert len(analyze_apart(str(run)).trace.meta.ranks) == RANKS
    assert times == [1]


def test_it_ends_when_nobody_waits_for_it(run: Path, tmp_path: Path) -> None:
    """And leaves nothing half written."""

    class NobodyWaitsError(BaseException):
        pass

    def give_up(done: int, _total: int) -> None:
        if done:
            raise NobodyWaitsError

    with pytest.raises(NobodyWaitsError):
        analyze_apart(str(run), progress=give_up)

    assert multiprocessing.active_children() == []
    assert list(tmp_path.glob("cache/.writing-*")) == []
