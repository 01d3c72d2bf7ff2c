"""The search for a fusion threshold and a cycle time."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tlkit.runtime.core.config import Config
from tlkit.runtime.core.control.autotune import Autotuner, expected_improvement
from tlkit.runtime.core.control.coordinator import Orders
from tlkit.runtime.core.control.messages import Response

_MIB = 1024 * 1024


def train(tuner: Autotuner, score: object, steps: int) -> tuple[float, float]:
    """Let training steps of 100 MB go by, each as fast as `score(threshold in MiB, cycle in ms)` says, in bytes a µs."""
    threshold, cycle = 128.0, 1.0
    now_ns, nbytes = 1, 100_000_000
    orders = Orders([((0, 1), Response(0, 0, [0, 1], []))], {})
    for _ in range(steps):
        now_ns += round(1000 * nbytes / score(threshold, cycle))  # type: ignore[operator]
        settings = tuner.observe(orders, nbytes, now_ns)
        if settings is not None:
            threshold, cycle = settings.fusion_threshold_nbytes / _MIB, settings.cycle_time_s * 1e3
    return threshold, cycle


def test_improvement_is_expected_where_scores_rise_and_nothing_is_known() -> None:
    """Close to the best point and in the dark, not close to the worst."""
    tried = np.array([[0.0, 0.5], [0.5, 0.5]])
    scores = np.array([1.0, 3.0])
    candidates = np.array([[0.0, 0.5], [0.5, 0.5], [0.6, 0.5], [1.0, 1.0]])
    gains = expected_improvement(tried, scores, candidates, noise=0.05)
    assert gains.shape == (4,)
    assert (gains >= 0).all()
    assert gains[0] < gains[1] < gains[2]
    assert gains[0] < gains[3]


def test_the_search_ends_near_the_best_settings_and_stays_there(tmp_path: Path) -> None:
    """A machine that likes 32 MiB and 0.5 ms: what is chosen is at least as good as 0.9 of that, and is the log's last row."""

    def score(threshold: float, cycle: float) -> float:
        return 1000 * float(np.exp(-(((threshold - 32) / 60) ** 2) - (np.log(cycle / 0.5) / 2) ** 2))

    log = tmp_path / "autotune.csv"
    tuner = Autotuner(Config(autotune=True, autotune_noise=0.1, autotune_log=str(log)))
    threshold, cycle = train(tuner, score, 2000)
    assert tuner.finished
    assert score(threshold, cycle) > 900
    with log.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 21
    assert float(rows[-1]["score"]) == max(float(row["score"]) for row in rows)
    assert int(rows[-1]["tensor_fusion_threshold"]) == round(threshold * _MIB)


@pytest.mark.parametrize("fixed", ["fusion_threshold", "cycle_time"])
def test_what_the_user_has_set_is_left_alone(fixed: str) -> None:
    """Only the other knob moves."""
    config = Config(autotune=True, **{f"{fixed}_is_set": True})  # type: ignore[arg-type]
    tuner = Autotuner(config)
    threshold, cycle = train(tuner, lambda threshold, cycle: 1000 + threshold - 10 * cycle, 2000)
    assert tuner.finished
    if fixed == "fusion_threshold":
        assert threshold == 128.0
    else:
        assert cycle == 1.0


def test_nothing_is_tuned_when_everything_is_set() -> None:
    """Both knobs are the user's."""
    assert Autotuner(Config(autotune=True, fusion_threshold_is_set=True, cycle_time_is_set=True)).finished
