"""tl-diff: what changed, and whether that is chance."""

import json
from pathlib import Path

import numpy as np
import pytest

from tlkit.collector import analyze
from tlkit.collector.commands.diff import main
from tlkit.collector.compare.runs import compare, ratio_interval

from .test_device import kineto
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
    assert comparison.ratio == pytest.approx(1.3, abs=0.001)
    assert comparison.significant
    assert changes["forward"] == pytest.approx(20, abs=0.1)
    assert changes["data"] == pytest.approx(28, abs=0.1)
    assert changes["idle"] == pytest.approx(-18, abs=0.1)
    assert "data: slow-loader" in comparison.findings_new


def test_the_command_says_it(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """For people, for programs, and as a gate."""
    first, second = map(str, runs)
    assert main([first, second]) == 0
    said = capsys.readouterr().out
    assert "The median step is 30.0% longer: 100 ms → 130 ms" in said
    assert "new: data: slow-loader" in said
    assert main([first, second, "--json"]) == 0
    diff = json.loads(capsys.readouterr().out)
    assert diff["parts"]["forward"]["difference_ns"] == pytest.approx(20e6, rel=0.01)
    assert main([first, second, "--fail-if-slower", "20%"]) == 1
    assert main([first, second, "--fail-if-slower", "40%"]) == 0
    assert main([second, first, "--fail-if-slower", "0%"]) == 0
    assert main([first, first]) == 0
    assert "may be chance" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["a", "b"], ["--fail-if-slower", "5", "a", "b"], ["a"]])
def test_mistakes_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2."""
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("tl-diff: ")


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Equal runs of noisy steps: 1 lies inside in nearly all of 200 pairs, and outside when a tenth is added."""
    random = np.random.default_rng(3)
    inside = different = 0
    for _ in range(200):
        first, second = (random.lognormal(0, 0.1, 60) * 1e8 for _ in range(2))
        low, high = ratio_interval(first, second)
        inside += low <= 1 <= high
        low, _ = ratio_interval(first, second * 1.1)
        different += low > 1
    assert inside >= 180
    assert different >= 190
