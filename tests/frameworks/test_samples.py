"""The samples for TensorFlow and Keras, and scripts as users of Horovod have them."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..integration.ranks import environment_of
from .job import run_script
from .nurseries import ENVIRONMENT

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("keras_images.py", "--epochs", "2", "--images", "128"), "rank 1: loss"),
        (("tensorflow_synthetic.py", "--timings", "2", "--batches", "3"), "samples/s on 2 ranks"),
    ],
)
def test_a_sample_runs(command: tuple[str, ...], said: str) -> None:
    """Two ranks, to the end."""
    ranks = run_script(SAMPLES / command[0], 2, *command[1:])

    assert [rank.returncode for rank in ranks] == [0, 0], ranks
    assert any(said in rank.stdout for rank in ranks), ranks


def launch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Start ranks as a user does, each of which imports all by itself."""
    inherited = {
        name: value for name, value in environment_of(0, 1, 0).items() if not name.startswith(("HOROVOD_", "MASTER_"))
    }
    return subprocess.run(
        [sys.executable, "-m", "tlkit.runtime.launch.cli", *arguments],
        env=inherited | ENVIRONMENT | {"KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )


@pytest.mark.timeout(600)
def test_the_elastic_sample_runs() -> None:
    """Under tl-run."""
    sample = SAMPLES / "keras_elastic.py"
    ended = launch("-np", "2", "--min-np", "1", sys.executable, sample, "--epochs", "2", "--batches", "5")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 epochs, loss" in ended.stdout


@pytest.mark.timeout(600)
def test_keras_goes_on_without_a_lost_rank() -> None:
    """From the last commit, which is of the epoch in which the rank was killed."""
    script = Path(__file__).with_name("jobs") / "lost_rank.py"
    flags = ("-np", "2", "--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "600", "900")
    ended = launch(*flags, sys.executable, script)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "DONE [[2, 0], [1, 1]] after 4 epochs" in ended.stdout, ended.stdout + ended.stderr
