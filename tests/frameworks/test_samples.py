"""The samples for TensorFlow and Keras, as a user starts them."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..integration.ranks import environment_of

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flags", "command", "said"),
    [
        ((), ("keras_images.py", "--epochs", "2", "--images", "128"), "rank 1: loss"),
        ((), ("tensorflow_synthetic.py", "--timings", "2", "--batches", "3"), "samples/s on 2 ranks"),
        (("--min-np", "1"), ("keras_elastic.py", "--epochs", "2", "--batches", "5"), "2 epochs, loss"),
    ],
)
def test_a_sample_runs(flags: tuple[str, ...], command: tuple[str, ...], said: str) -> None:
    """Two ranks, to the end."""
    inherited = {
        name: value for name, value in environment_of(0, 1, 0).items() if not name.startswith(("HOROVOD_", "MASTER_"))
    }
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "tlkit.runtime.launch.cli",
            "-np",
            "2",
            *flags,
            sys.executable,
            SAMPLES / command[0],
            *command[1:],
        ],
        env=inherited
        | {
            "KERAS_BACKEND": "tensorflow",
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert said in ended.stdout
