"""Each framework's own loop on two ranks, recorded by its callback: the verdict has to be the fault that was put in."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tlkit.collector import Analysis, analyze

REPOSITORY = Path(__file__).resolve().parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
STEPS = 24


def train(words: Sequence[str], fault: str, timeline: Path) -> Analysis:
    """The analysis of a job, of which one step at most is left out as warm-up."""
    environment = dict(os.environ) | {
        "PYTHONPATH": str(REPOSITORY),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "FAULT": fault,
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
        "DS_ACCELERATOR": "cpu",
    }
    ended = subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=Path(__file__).with_name("jobs"),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return analyze(timeline)


def expect_slow_rank(analysis: Analysis) -> None:
    """Rank 1 is slow in forward, which is a phase of its own; every training step is one step."""
    verdict = analysis.verdict
    names = set(analysis.trace.spans["name"].astype(str))

    assert (verdict.class_, verdict.cause, list(verdict.ranks)) == ("straggler", "slow-forward", [1])
    assert {"DATA_WAIT", "FORWARD", "BACKWARD", "OPTIMIZER_STEP", "STEP"} <= names
    steps = analysis.trace.spans
    assert [int(((steps["name"] == "STEP") & (steps["rank"] == rank)).sum()) for rank in (0, 1)] == [STEPS, STEPS]


@pytest.mark.timeout(960)
@pytest.mark.parametrize(
    ("package", "strategy", "collective"),
    [("lightning", "fsdp", "ALLGATHER"), ("pytorch_lightning", "ddp", "ALLREDUCE")],
)
def test_lightning(package: str, strategy: str, collective: str, tmp_path: Path) -> None:
    """Under both names of the package; gradients that the optimizer's closure makes are no optimizer's time."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    timeline = tmp_path / "t.json"
    analysis = train(["train_lightning.py", package, strategy, str(timeline)], "slow-rank", timeline)
    spans = analysis.trace.spans

    expect_slow_rank(analysis)
    assert (spans["name"] == collective).any()
    own = {name: spans[(spans["name"] == name) & (spans["rank"] == 1)] for name in ("FORWARD", "OPTIMIZER_STEP")}
    starts, ends = (
        own["OPTIMIZER_STEP"]["start_ns"].to_numpy(),
        (own["OPTIMIZER_STEP"]["start_ns"] + own["OPTIMIZER_STEP"]["dur_ns"]).to_numpy(),
    )
    inside = [((starts < start) & (start < ends)).any() for start in own["FORWARD"]["start_ns"]]
    assert not any(inside)


@pytest.mark.timeout(960)
def test_transformers(tmp_path: Path) -> None:
    """The callback begins before the Trainer wraps the model, so that gradients are there; a slow dataset is found."""
    timeline = tmp_path / "t.json"
    analysis = train([*TORCHRUN, "train_transformers.py", str(timeline)], "slow-dataset", timeline)

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("data", "slow-loader")
    assert list(analysis.verdict.ranks) == [0, 1]
    assert (analysis.trace.spans["name"] == "ALLREDUCE").any()


@pytest.mark.timeout(960)
def test_accelerate(tmp_path: Path) -> None:
    """Two batches make one step, as gradients are accumulated."""
    timeline = tmp_path / "t.json"

    expect_slow_rank(train([*TORCHRUN, "train_accelerate.py", str(timeline)], "slow-rank", timeline))


@pytest.mark.timeout(960)
def test_ray(tmp_path: Path) -> None:
    """Ray Train's workers, and our runtime's ranks on Ray's workers: each writes into the folder that was named."""
    first, second = tmp_path / "t.json", tmp_path / "own.json"
    expect_slow_rank(train(["train_ray.py", str(first), str(second)], "slow-rank", first))
    verdict = analyze(second).verdict

    assert (verdict.class_, verdict.cause, list(verdict.ranks)) == ("straggler", "slow-host-code", [1])


@pytest.mark.timeout(960)
def test_deepspeed(tmp_path: Path) -> None:
    """ZeRO steps each of its two groups of parameters by itself; they are one step."""
    if find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    timeline = tmp_path / "t.json"
    analysis = train([*TORCHRUN, "train_deepspeed.py", "1", str(timeline)], "slow-rank", timeline)

    expect_slow_rank(analysis)
    assert (analysis.trace.spans["name"] == "OPTIMIZER_STEP").sum() == 2 * STEPS
