"""Which stage of a tf.data pipeline holds the training up, and remedies in the words of the framework."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.traces import make_trace, uniform
from tests.unit.timeline.xplanes import Event, plane
from tlkit.collector import analyze
from tlkit.collector.findings.framework_words import Advice, advice_of
from tlkit.collector.model.stages import find_pipeline
from tlkit.timeline import Trace, open_trace
from tlkit.timeline.vocabulary import FRAMEWORKS

MS = 1_000_000
STEP = 50 * MS
REPOSITORY = Path(__file__).resolve().parents[3]


def run(tmp_path: Path, stages: list[tuple[str, int, dict[str, object]]], *, cores: int = 8, wait: int = 30) -> Trace:
    """Ten steps of 50 ms, in which nested stages take `wait` ms of the training thread, each the ms given of its own."""
    events: list[Event] = []
    for step in range(10):
        at = step * STEP
        events += [
            Event("train", at, STEP, {"step_num": step, "_r": 1}),
            Event("Iterator::Root", at, wait * MS, {"cpu_budget": cores}),
        ]
        path, left, begin = "Iterator::Root", wait, 0
        for name, own, settings in stages:
            path = f"{path}::{name}"
            events.append(Event(path, at + begin * MS, left * MS, settings))
            begin, left = begin + own, left - own
        events.append(Event("dense/MatMul:MatMul", at + wait * MS, STEP - wait * MS))
    (tmp_path / "x.xplane.pb").write_bytes(plane("/host:CPU", {"python": events}))
    return open_trace(tmp_path / "x.xplane.pb")


@pytest.mark.parametrize(
    ("name", "named", "remedy"),
    [
        ("TFRecord", "TFRecordDataset is the slowest stage", "interleave(tf.data.TFRecordDataset"),
        ("Map", "map() is the slowest stage", "map(…, num_parallel_calls=tf.data.AUTOTUNE)"),
        ("FlatMap", "flat_map() or from_generator() is the slowest stage", "several generators through interleave"),
        ("Shuffle", "shuffle() is the slowest stage", "a smaller buffer_size"),
        ("PaddedBatchV2", "padded_batch() is the slowest stage", "batch(…, num_parallel_calls=tf.data.AUTOTUNE)"),
        ("<b>\x1b[31mx", "is the slowest stage", "cache()"),
    ],
)
def test_the_slowest_stage_is_named_with_its_remedy(tmp_path: Path, name: str, named: str, remedy: str) -> None:
    """Wherever it stands among the others; without prefetch that comes first."""
    verdict = analyze(run(tmp_path, [("BatchV2", 2, {}), (name, 25, {}), ("Range", 3, {})])).verdict
    assert (verdict.class_, verdict.cause) == ("data", "slow-loader")
    assert named in verdict.sentence
    assert verdict.remedy.startswith("End the pipeline with .prefetch(tf.data.AUTOTUNE)")
    assert remedy in verdict.remedy
    assert verdict.evidence["stages"][0]["own_ns"] == 25 * MS


def test_a_gain_that_the_cores_do_not_have_is_not_promised(tmp_path: Path) -> None:
    """20 ms of training and 30 of input side by side: 20 ms a step on eight cores, 25 on two, and on one nothing is gained."""
    stages: list[tuple[str, int, dict[str, Any]]] = [("Map", 30, {})]
    for cores, gain in ((8, 0.6), (2, 0.5)):
        verdict = analyze(run(tmp_path, stages, cores=cores)).verdict
        assert verdict.predicted_gain == pytest.approx(gain, abs=0.01)
        assert verdict.remedy.startswith("End the pipeline")
    one = analyze(run(tmp_path, stages, cores=1)).verdict
    assert one.remedy.startswith("Make its function cheaper")
    assert "prefetch" not in one.remedy


def test_a_stage_with_threads_of_its_own_only_waits_where_it_is_asked(tmp_path: Path) -> None:
    """Its work is what it does to produce, and the function on other threads; two that work side by side are twice as fast."""
    asked, produced = [], []
    functions: dict[str, list[Event]] = {"tf_data_private_threadpool/1": [], "tf_data_private_threadpool/2": []}
    stage = "Iterator::Root::Prefetch::ParallelMapV2"
    for step in range(10):
        at = step * STEP
        asked += [
            Event("train", at, STEP, {"step_num": step, "_r": 1}),
            Event("Iterator::Root", at, 30 * MS, {"cpu_budget": 8}),
            Event("Iterator::Root::Prefetch", at, 30 * MS),
        ]
        produced += [
            Event("PrefetchProduce", at, 40 * MS),
            Event(stage, at, 40 * MS, {"parallelism": 2}),
            Event("ParallelMapProduce", at + 41 * MS, 5 * MS),
            Event(f"{stage}::Range", at + 41 * MS, 1 * MS),
            Event("InstantiatedCapturedFunction::RunAsync", at + 43 * MS, 1 * MS),
            Event("FunctionRun", at + 43 * MS, MS // 2, {"_pt": 2, "_p": step + 1}),
        ]
        for lane in functions.values():
            lane.append(Event("ExecutorState::Process", at, 35 * MS, {"_ct": 2, "_c": step + 1}))
    lines = {"python": asked, "tf_data_iterator_resource/1": produced, **functions}
    (tmp_path / "x.xplane.pb").write_bytes(plane("/host:CPU", lines))
    trace = open_trace(tmp_path / "x.xplane.pb")
    pipeline = find_pipeline(trace, trace.spans)
    assert pipeline is not None
    slowest = pipeline.stages[0]
    assert (slowest.path, slowest.threads, slowest.parallelism, slowest.has_function) == (stage, 2, 2, True)
    # 2 x 35 ms of the function, 1 ms to start it, 3 ms to produce without what is asked of others.
    assert slowest.own_ns == pytest.approx(74 * MS)
    assert pipeline.has_prefetch
    assert pipeline.work_ns == pytest.approx(75 * MS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("advice", list(Advice))
def test_every_framework_has_words_for_every_advice(framework: str, advice: Advice) -> None:
    """And none speaks of another's."""
    text = advice_of(framework, advice, name="Adam", accumulation="no_sync()", groups="4")
    assert text.endswith(".")
    others = {
        "torch": ("tf.", "jax.", "keras."),
        "tensorflow": ("DataLoader", "torch", "jax."),
        "keras": ("DataLoader", "torch", "jax."),
        "jax": ("torch", "pin_memory", "compile("),
    }
    assert not [word for word in others[framework] if word in text]


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("torch", "DataLoader(num_workers="), ("", "DataLoader(num_workers="), ("tensorflow", ".prefetch(tf.data.AUTOTUNE)"),
        ("keras", "keras.utils.PyDataset"), ("jax", "jax.device_put"),
    ],
)  # fmt: skip
def test_our_own_timelines_get_the_words_of_their_framework(framework: str, words: str) -> None:
    """Without stages the loader as a whole is to blame."""
    trace = make_trace(uniform(2, 12, {"data": 30.0, "forward": 10.0, "backward": 15.0, "optimizer": 2.0}))
    verdict = analyze(replace(trace, meta=replace(trace.meta, framework=framework))).verdict
    assert verdict.class_ == "data"
    assert words in verdict.remedy


@pytest.mark.parametrize(
    ("kind", "class_", "stage"),
    [("slow-map", "data", "BatchV2::Map"), ("no-prefetch", "data", "Root::Sleep"), ("keras", "data", "BatchV2::Map"), ("healthy", "healthy", "")],
)  # fmt: skip
def test_verdicts_on_recorded_profiles(kind: str, class_: str, stage: str) -> None:
    """Their faults are known: samples/formats/xplane/record.py made them."""
    verdict = analyze(open_trace(REPOSITORY / "samples" / "formats" / "xplane" / f"{kind}.xplane.pb.gz")).verdict
    assert verdict.class_ == class_
    assert stage in verdict.sentence
    assert class_ == "healthy" or verdict.remedy.startswith("End the pipeline with .prefetch(tf.data.AUTOTUNE)")
