"""Analyses that are kept: the same the next time, and made anew when anything that they depend on is another."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tlkit.collector import kept, make_report
from tlkit.collector.analysis import Analysis, analyze
from tlkit.collector.commands.analyze import main as tl_analyze
from tlkit.collector.commands.diff import main as tl_diff
from tlkit.collector.findings import RULES
from tlkit.collector.kept import analyze_kept
from tlkit.timeline import open_trace
from tlkit.timeline.read import cache, cache_entries

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


@pytest.fixture
def analysed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each analysis that is really made; the cache is empty, and for files of any size."""
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_NBYTES", 0)
    made: list[int] = []

    def count(*args: object, **options: object) -> Analysis:
        made.append(1)
        return analyze(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(kept, "analyze", count)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks, one of which is slow."""
    folder = tmp_path / "run"
    folder.mkdir()
    for path in (SAMPLES / "slow-optimizer").glob("t*.json.gz"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def said(analysis: Analysis) -> str:
    """All that reports say."""
    return json.dumps(make_report(analysis), default=str)


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())[::5])
def test_what_was_kept_is_the_same(tmp_path: Path, name: str) -> None:
    """In every number, of traces of several formats."""
    analysis = analyze(str(SAMPLES / name))
    kept.store(tmp_path, "0" * 40, analysis)
    found = kept.load(tmp_path, "0" * 40, analysis.trace)

    assert found is not None
    assert found.trace is analysis.trace
    assert said(found) == said(analysis)


def test_of_devices_too(shared_traces: Path, tmp_path: Path) -> None:
    """With what was found out about the device, which takes longest."""
    analysis = analyze(str(shared_traces / "kineto" / "amd_trace_mi250_minitoy_train_ROCm6_2_kineto.json.gz"))
    kept.store(tmp_path, "0" * 40, analysis)
    found = kept.load(tmp_path, "0" * 40, analysis.trace)

    assert found is not None
    assert "device" in vars(found.facts)
    assert said(found) == said(analysis)


def test_it_is_analysed_once(run: Path, analysed: list[int]) -> None:
    """The first time the trace is read from its files, then from the cache."""
    reports = [said(analyze_kept(run)) for _ in range(3)]

    assert len(analysed) == 1
    assert reports == [said(analyze(run))] * 3


def test_a_selection_is_another_analysis(run: Path, analysed: list[int]) -> None:
    for _ in range(2):
        assert analyze_kept(run, ranks=[1]).facts.ranks == (1,)
        assert analyze_kept(run, warm_up=3).facts.steps.excluded == 3
        assert analyze_kept(run, steps=(6, 9)).facts.steps.numbers.tolist() == [7, 8]
        assert analyze_kept(run).facts.ranks == (0, 1)

    assert len(analysed) == 4


def test_a_report_is_enough(run: Path, analysed: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """`tl-analyze` keeps what `tl-dash` opens, by whatever path the run is named, and `tl-diff` takes it, too."""
    reports = []
    for more in ((), ("--baseline", str(run))):
        assert tl_analyze([str(run), "--json", "-", *more]) == 0
        reports.append(capsys.readouterr().out)
    analyze_kept(os.path.relpath(run))
    assert tl_diff([str(run), str(run)]) == 0

    assert len(analysed) == 1
    assert reports[0] == reports[1]


def test_rules_of_other_packages_are_asked_each_time(
    run: Path, analysed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes one changes it and looks again."""
    monkeypatch.setattr(kept, "all_rules", lambda: (*RULES, RULES[0]))
    for _ in range(2):
        analyze_kept(run)

    assert len(analysed) == 2


def test_another_code_analyses_anew(run: Path, analysed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    analyze_kept(run)
    monkeypatch.setattr(kept, "_code", lambda: "another")
    analyze_kept(run)

    assert len(analysed) == 2


def test_a_changed_file_is_analysed_anew(run: Path, analysed: list[int]) -> None:
    analyze_kept(run)
    (run / "t.rank1.json.gz").unlink()
    assert analyze_kept(run).condition.missing_ranks == 1
    assert len(analysed) == 2


def test_a_run_that_goes_on_is_not_kept(run: Path, analysed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so only while it is looked at, and another time not any more."""
    found = analyze(run)
    going = replace(found, condition=replace(found.condition, ending="running"))

    def look(*_args: object, **_options: object) -> Analysis:
        analysed.append(1)
        return going

    monkeypatch.setattr(kept, "analyze", look)
    for _ in range(2):
        assert analyze_kept(run).condition.ending == "running"

    assert len(analysed) == 2


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _turned(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


@pytest.mark.parametrize("damage", [_cut, _turned, lambda _: b""])
def test_damage_is_analysed_anew(run: Path, analysed: list[int], damage: Callable[[bytes], bytes]) -> None:
    analyze_kept(run)
    (path,) = cache_entries.cache_folder().glob("*/*.analysis")  # type: ignore[union-attr]
    path.write_bytes(damage(path.read_bytes()))
    report = said(analyze_kept(run))

    assert len(analysed) == 2
    assert report == said(analyze(run))


class _Harm:
    """What somebody might put into a pickle."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.system, ("touch harm",)


@pytest.mark.parametrize("harm", [_Harm(), print, open_trace, analyze, Path(), Path, subprocess.Popen])
def test_nothing_is_run_that_is_in_the_file(tmp_path: Path, harm: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """No function, and no class but those of records, tables and arrays."""
    monkeypatch.chdir(tmp_path)
    cache_entries.add_analysis(tmp_path, "0" * 40, pickle.dumps(harm))
    trace = open_trace(SAMPLES / "healthy")

    assert kept.load(tmp_path, "0" * 40, trace) is None
    assert not (tmp_path / "harm").exists()


def test_a_link_and_a_file_of_somebody_else_are_not_read(
    run: Path, analysed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyze_kept(run)
    (path,) = cache_entries.cache_folder().glob("*/*.analysis")  # type: ignore[union-attr]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    analyze_kept(run)
    assert len(analysed) == 2

    folder, name = path.parent, path.name.removesuffix(".analysis")
    cache_entries.read_analysis(folder, name)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ValueError, match="another user"):
        cache_entries.read_analysis(folder, name)


def test_few_are_kept_of_one_trace(run: Path, analysed: list[int]) -> None:
    """And they go with their trace."""
    for warm_up in range(6):
        analyze_kept(run, warm_up=warm_up)
    folder = cache_entries.cache_folder()
    assert folder is not None
    (entry,) = {path.parent for path in folder.glob("*/*.analysis")}
    assert len(list(entry.glob("*.analysis"))) == 4

    cache_entries.remove(entry)
    assert not entry.exists()


def test_the_name_is_the_same_in_every_process(run: Path) -> None:
    """Though the order of sets is not."""
    said_by = [
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from tlkit.collector.kept import _name_of, open_trace; print(_name_of(open_trace(sys.argv[1]), None, None, None))",
                str(run),
            ],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]

    assert len(set(said_by)) == 1


def test_without_a_cache_it_is_analysed_each_time(
    run: Path, analysed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLKIT_CACHE_DIR", "")
    for _ in range(2):
        analyze_kept(run)

    assert len(analysed) == 2
