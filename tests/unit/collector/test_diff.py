"""tl-diff: what changed, and whether that is chance."""

import json
from pathlib import Path

import pytest

from tests.traces import make_trace, uniform
from tlkit.collector import analyze
from tlkit.collector.commands.analyze import main as analyze_main
from tlkit.collector.commands.diff import main
from tlkit.collector.compare.runs import compare
from tlkit.timeline.vocabulary import Category

from .test_device import kineto
from .test_diagnosis import HEALTHY
from .test_what_if import step


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Loading 2 and forward 40 of 100 ms; loading 30 and forward 60 of 130."""
    return (
        kineto(tmp_path / "a.json", step(40, loading=2), steps=20, step_ms=100),
        kineto(tmp_path / "b.json", step(60, loading=30), steps=20, step_ms=130),
    )


def test_parts_that_changed_come_first(runs: tuple[Path, Path]) -> None:
    """With what they took before and after."""
    comparison = compare(*(analyze(path) for path in runs))
    changes = {change.name: change.difference_ns / 1e6 for change in comparison.parts}
    assert comparison.mean.ratio == pytest.approx(1.3, abs=0.001)
    assert [ratio.name for ratio in comparison.slower(0.2)] == ["mean", "median", "p95"]
    total_ns = sum(change.difference_ns for change in comparison.parts)
    assert total_ns == comparison.after.mean_ns - comparison.before.mean_ns
    assert changes["forward"] == pytest.approx(20, abs=0.1)
    assert changes["data"] == pytest.approx(28, abs=0.1)
    assert changes["idle"] == pytest.approx(-18, abs=0.1)
    assert "data: slow-loader" in comparison.findings_new


def test_the_command_says_it(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """For people, for programs, and as a gate."""
    first, second = map(str, runs)
    assert main([first, second]) == 0
    said = capsys.readouterr().out
    assert "The mean step is 30.0% longer: 100 ms → 130 ms" in said
    assert "new: data: slow-loader" in said
    assert main([first, second, "--json"]) == 0
    diff = json.loads(capsys.readouterr().out)
    assert diff["parts"]["forward"]["difference_ns"] == pytest.approx(20e6, rel=0.01)
    assert diff["mean"]["ratio"] == pytest.approx(1.3, abs=0.001)
    assert diff["steps_per_second"]["after"] == pytest.approx(1 / 0.13, rel=0.001)
    assert main([first, second, "--fail-if-slower", "20%"]) == 1
    assert "95th percentile of the steps is 30.0% longer" in capsys.readouterr().err
    assert main([first, second, "--fail-if-slower", "40%"]) == 0
    assert main([second, first, "--fail-if-slower", "0%"]) == 0
    assert main([first, first]) == 0
    assert "may be chance" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["a", "b"], ["--fail-if-slower", "5", "a", "b"], ["a"]])
def test_mistakes_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2."""
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("tl-diff: ")


def test_json_goes_to_a_file_or_to_standard_output(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with tl-analyze; a trace is never overwritten."""
    first, second = map(str, runs)
    target = tmp_path / "diff.json"
    assert main([first, second, "--json", str(target)]) == 0
    assert json.loads(target.read_text())["schema"] == "tlkit.diff/2"
    assert "The mean step is" in capsys.readouterr().out
    assert main([first, second, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(target.read_text())
    assert main([first, second, "--json", second]) == 2
    assert "would overwrite the trace" in capsys.readouterr().err


def checkpoints(folder: Path, every: int) -> Path:
    """Forty steps of 100 ms; with `every`, some wait a second for a checkpoint in the middle."""
    folder.mkdir()
    rows = ['{"name":"tlkit_shard","ph":"M","pid":0,"tid":0,"ts":0,"args":{"rank":0,"size":1,"run_id":"x"}}']
    now = 0
    for number in range(40):
        begun, jitter = now, number * 7919 % 11 * 400
        rows.append(f'{{"name":"FORWARD","cat":"forward","ph":"X","pid":0,"tid":1,"ts":{now},"dur":{95_000 + jitter}}}')
        now += 95_000 + jitter
        if every and number % every == every - 1:
            rows.append(f'{{"name":"CHECKPOINT","cat":"checkpoint","ph":"X","pid":0,"tid":1,"ts":{now},"dur":1000000}}')
            now += 1_000_000
        args = f'"dur":{now - begun},"args":{{"step":{number}}}'
        rows.append(f'{{"name":"STEP","cat":"step","ph":"X","pid":0,"tid":0,"ts":{begun},{args}}}')
    (folder / "t.json").write_text("[\n" + ",\n".join(rows) + "\n]")
    return folder / "t.json"


def test_checkpoints_fail_the_gates_though_the_median_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of tl-diff and of tl-analyze; and the part that grew is named."""
    before, after = checkpoints(tmp_path / "a", 0), checkpoints(tmp_path / "b", 10)
    comparison = compare(analyze(before), analyze(after))

    assert comparison.mean.ratio > 1.8
    assert comparison.median.ratio == pytest.approx(1, abs=0.02)
    assert comparison.parts[0].name == "checkpoint"
    assert main([str(before), str(after), "--fail-if-slower", "5%"]) == 1
    assert "half of the steps take up to" in " ".join(capsys.readouterr().out.split())
    assert main([str(before), str(before), "--fail-if-slower", "0%"]) == 0
    report = tmp_path / "old.json"
    assert analyze_main([str(before), "--json", str(report)]) == 0
    for condition, status in [
        ("step_ms>+5%", 1),
        ("steps_per_second<-5%", 1),
        ("step_median_ms>+5%", 0),
        ("checkpoint>+5%", 1),
        ("step_ms<-5%", 0),
        ("step_ms>150", 1),
        ("step_median_ms>150", 0),
        ("steps_per_second<8", 1),
        ("steps_per_second<8%", 2),
    ]:
        given = [str(after), "--baseline", str(report), "--fail-on", condition, "--json", "-"]
        assert analyze_main(given) == status, condition


def test_what_cannot_be_compared_is_said() -> None:
    """Other numbers of ranks are no gate; other parts, few steps and cut traces have a note."""
    two, four = (analyze(make_trace(uniform(ranks, 30, HEALTHY))) for ranks in (2, 4))
    few = analyze(make_trace(uniform(2, 6, HEALTHY)))
    blind = analyze(make_trace(uniform(2, 30, HEALTHY), known=frozenset({Category.COLLECTIVE})))

    assert not compare(two, four).is_same_job
    assert compare(two, four).notes[0] == "2 ranks before and 4 now: a step is not the same work"
    assert any("too few to be sure" in note for note in compare(two, few).notes)
    assert compare(two, blind).parts == ()
    assert any("do not show the same parts" in note for note in compare(two, blind).notes)
    assert compare(two, two).notes == ()
