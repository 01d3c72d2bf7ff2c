"""MultiWorkerMirroredStrategy: recorded by tlkit.instrument(), and the same parameters as ours."""

from pathlib import Path

import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace

from ..integration.ranks import free_port
from .job import checks_of, expect_fine, run_job

SIZE = 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[object]], Path]:
    """What the ranks said, and the timeline of the strategy's part."""
    path = tmp_path_factory.mktemp("strategy") / "t.json"
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(SIZE)]
    return run_job("strategy", SIZE, str(path), *addresses), path


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", checks_of("strategy"))
def test_all_come_to_the_same_parameters(check: str, trained: tuple[dict[str, list[object]], Path]) -> None:
    """After 20 steps: the strategy's ranks, one process with the whole batch, and our ranks."""
    expect_fine(trained[0], check, SIZE)


@pytest.mark.timeout(600)
def test_the_strategy_is_recorded(trained: tuple[dict[str, list[object]], Path]) -> None:
    """TF_CONFIG tells the ranks apart; steps, their parts and the collectives are there, which the ranks number alike."""
    trace = open_trace(trained[1])

    assert (trace.meta.size, trace.meta.framework) == (SIZE, "tensorflow")
    assert trace.steps.groupby("rank").size().tolist() == [20, 20]
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
    assert shapes[0] == shapes[1]
    reduced = collectives[(collectives["kind"] == "allreduce") & (collectives["caller"] == "gradient")]
    dense = 4 * (10 * 8 + 8 + 8 + 1)  # bytes of the two layers
    assert (reduced["nbytes"] == dense).sum() == SIZE * 20
    assert "HOROVOD" not in "".join(finding.remedy for finding in analyze(trace).findings)
