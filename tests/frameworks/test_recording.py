"""What is recorded of Keras, and what the diagnosis makes of it."""

from pathlib import Path

import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace
from tlkit.timeline.vocabulary import STAGE_WORK

from .job import run_job


def record(folder: Path, backend: str, fault: str) -> str:
    """A recorded run of two ranks; the timeline's path."""
    path = str(folder / "t.json")
    keras_2 = {"TF_USE_LEGACY_KERAS": "1"} if backend == "keras 2" else {}
    said = run_job("recorded", 2, fault, backend=backend, environment={"HOROVOD_TIMELINE": path, **keras_2})
    assert said["status"] == [0, 0], said["printed"]
    return path


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "phases"),
    [
        ("tensorflow", {"FORWARD", "BACKWARD", "OPTIMIZER_STEP"}),
        ("torch", {"FORWARD", "BACKWARD", "OPTIMIZER_STEP"}),
        ("jax", {"FORWARD_BACKWARD"}),
        ("keras 2", {"FORWARD", "BACKWARD", "OPTIMIZER_STEP"}),
    ],
)
def test_the_parts_of_a_step_are_recorded(backend: str, phases: set[str], tmp_path: Path) -> None:
    """Steps, data, compute, waits, and every gradient by the name of its variable; in the framework's name."""
    trace = open_trace(record(tmp_path, backend, "none"))
    spans = trace.spans
    names = {str(name) for name in spans["name"].unique()}

    assert phases | {"STEP", "DATA_WAIT", "ALLREDUCE", "SYNCHRONIZE"} <= names
    assert any("first/kernel" in name for name in names) or any(
        "first/kernel" in Path(path).read_text() for path in (tmp_path / "t.json", tmp_path / "t.rank1.json")
    )
    steps = spans[spans["name"] == "STEP"]
    assert 25 <= len(steps[steps["rank"] == 0]) <= 30
    assert '"framework":"keras"' in (tmp_path / "t.json").read_text().replace(" ", "")


@pytest.mark.timeout(600)
def test_a_slow_map_function_is_data(tmp_path: Path) -> None:
    """All ranks wait for it."""
    verdict = analyze(record(tmp_path, "tensorflow", "slow-map")).verdict

    assert verdict.class_ == "data"
    assert verdict.predicted_gain > 0.3


@pytest.mark.timeout(600)
def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    """With the part of the step in which it is slow."""
    verdict = analyze(record(tmp_path, "tensorflow", "slow-rank")).verdict

    assert (verdict.class_, verdict.cause, list(verdict.ranks)) == ("straggler", "slow-forward", [1])
    assert verdict.predicted_gain > 0.3


@pytest.mark.timeout(600)
def test_without_prefetch_batches_are_made_ahead(tmp_path: Path) -> None:
    """Half of each step is the pipeline, which the other half would hide: for all ranks, in TensorFlow's words."""
    verdict = analyze(record(tmp_path, "tensorflow", "no-prefetch")).verdict

    assert (verdict.class_, verdict.cause, list(verdict.ranks)) == ("data", "slow-loader", [0, 1])
    assert ".prefetch(tf.data.AUTOTUNE)" in verdict.remedy


@pytest.mark.timeout(600)
def test_the_dense_gradient_of_a_huge_embedding_is_named(tmp_path: Path) -> None:
    """By its variable's name, though it travels with others; the remedy is Keras's."""
    verdict = analyze(record(tmp_path, "tensorflow", "embedding")).verdict

    assert (verdict.class_, verdict.cause, list(verdict.ranks)) == ("communication", "oversize-gradient", [0, 1])
    assert "table/embeddings" in verdict.sentence
    assert "keras.layers.Embedding" in verdict.remedy
    assert "sparse_as_dense=False" in verdict.remedy


@pytest.mark.timeout(600)
def test_a_healthy_run_is_called_so(tmp_path: Path) -> None:
    """Nothing is blamed for a step that computes."""
    assert analyze(record(tmp_path, "tensorflow", "healthy")).verdict.class_ in {"healthy", "compute"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_functions_that_are_compiled_again_are_named(framework: str, tmp_path: Path) -> None:
    """In every third step, which hands over another shape or number."""
    path = tmp_path / "t.json"
    said = run_job("compiled", 2, framework, backend=framework, environment={"HOROVOD_TIMELINE": str(path)})
    assert said["status"] == [0, 0], said["printed"]
    trace = open_trace(path)
    compiled = trace.spans[trace.spans["name"] == "COMPILATION"]

    assert set(compiled["rank"]) == {0, 1}
    assert "compiled-again" in {finding.cause for finding in analyze(trace, warm_up=4).findings}


@pytest.mark.timeout(600)
def test_the_work_of_a_pipeline_is_counted_by_stage(tmp_path: Path) -> None:
    """Of Keras's own iterator, which its compiled step asks: the stage that works most has the slow function."""
    counters = open_trace(record(tmp_path, "tensorflow", "slow-map")).counters
    told = counters[counters["name"].astype(str).str.startswith(STAGE_WORK)]
    by_stage = told.groupby(told["name"].astype(str))["value"].mean()

    assert set(told["rank"]) == {0, 1}
    assert "Map" in str(by_stage.idxmax()).rpartition("::")[2]
    assert by_stage.max() > 1e6
