"""MultiWorkerMirroredStrategy: recorded by tlkit.instrument(), and the same parameters as ours."""

from functools import cache
from pathlib import Path

import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace

from ..integration.ranks import free_port
from .job import checks_of, expect_fine, run_job

SIZES = (2, 4)


@cache
def trained(size: int, folder: Path) -> tuple[dict[str, list[object]], Path]:
    """What so many ranks said, and the timeline of the strategy's part."""
    path = folder / f"{size}.json"
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(size)]
    return run_job("strategy", size, str(path), *addresses), path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the timelines."""
    return tmp_path_factory.mktemp("strategy")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", checks_of("strategy"))
def test_all_come_to_the_same_parameters(check: str, size: int, folder: Path) -> None:
    """After 20 steps: the strategy's ranks, one process with the whole batch, and our ranks."""
    expect_fine(trained(size, folder)[0], check, size)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", SIZES)
def test_the_strategy_is_recorded(size: int, folder: Path) -> None:
    """TF_CONFIG tells the ranks apart; steps, their parts and the collectives are there, which the ranks number alike."""
    trace = open_trace(trained(size, folder)[1])

    assert (trace.meta.size, trace.meta.framework) == (size, "tensorflow")
    assert trace.steps.groupby("rank").size().tolist() == [20] * size
    for _, spans in trace.spans.groupby("rank"):
        names = spans["name"].astype(str).value_counts().to_dict()
        assert names["FORWARD"] == names["BACKWARD"] == 20
        assert names["SYNCHRONIZE"] >= 20
        assert names["OPTIMIZER_STEP"] >= 20
    collectives = trace.collectives.sort_values(["rank", "seq"])
    shapes = [
        list(zip(of_rank["seq"], of_rank["kind"].astype(str), of_rank["nbytes"], strict=True))
        for _, of_rank in collectives.groupby("rank")
    ]
    assert all(shape == shapes[0] for shape in shapes)
    reduced = collectives[(collectives["kind"] == "allreduce") & (collectives["caller"] == "gradient")]
    dense = 4 * (10 * 8 + 8 + 8 + 1)  # bytes of the two layers
    assert (reduced["nbytes"] == dense).sum() == size * 20
    assert "HOROVOD" not in "".join(finding.remedy for finding in analyze(trace).findings)
