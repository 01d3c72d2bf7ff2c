"""What is told of a tf.data pipeline, by models as TensorFlow keeps them."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tlkit.runtime.instrument import pipelines
from tlkit.timeline.vocabulary import STAGE_CALLS, STAGE_WORK


@dataclass
class Node:
    """Of a model: name, elements made and work until now (ns), and what it asks."""

    name: str
    num_elements: int = 0
    processing_time: int = 0
    inputs: list[int] = field(default_factory=list)
    ratio: float = 1.0
    calls: int = 0

    @property
    def parameters(self) -> list[Any]:
        """As in the model."""
        return [SimpleNamespace(name="parallelism", value=float(self.calls))] if self.calls else []


class Iterator:
    """What is asked."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}


@pytest.fixture
def iterator(monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """One whose model is `nodes`, the first of which hands out batches."""
    monkeypatch.setattr(pipelines, "_model", lambda it: (it.nodes, min(it.nodes)))
    made = Iterator()
    pipelines.watch(made)
    return made


def test_work_is_told_for_a_batch_by_stage(iterator: Iterator) -> None:
    """8 elements of the map make one batch; only what has come since the last time counts."""
    iterator.nodes = {
        1: Node("Root", 10, 10_000, [2]),
        2: Node("BatchV2", 10, 500_000, [3], ratio=8),
        3: Node("ParallelMapV2", 80, 80_000_000, [4], calls=2),
        4: Node("TextLine", 80, 800_000),
    }
    path = "Iterator::Root::BatchV2"
    assert dict(pipelines.sample(1.0)) == {
        f"{STAGE_WORK}{path}::ParallelMapV2": 8_000_000,
        f"{STAGE_CALLS}{path}::ParallelMapV2": 2,
        f"{STAGE_WORK}{path}::ParallelMapV2::TextLine": 80_000,
        f"{STAGE_WORK}{path}": 50_000,
        f"{STAGE_WORK}Iterator::Root": 1_000,
    }
    iterator.nodes[3] = Node("ParallelMapV2", 160, 80_000_000 + 160_000_000, [4], calls=2)
    told = dict(pipelines.sample(1.0))
    assert told[f"{STAGE_WORK}{path}::ParallelMapV2"] == 16_000_000
    assert told[f"{STAGE_WORK}{path}"] == 0


def test_stages_that_an_epoch_makes_anew_are_told_as_well(iterator: Iterator) -> None:
    """What those before have worked is gone: a new one has begun with nothing."""
    iterator.nodes = {1: Node("Repeat", 100, 0, [2]), 2: Node("Map", 100, 300_000_000)}
    assert dict(pipelines.sample(1.0))[f"{STAGE_WORK}Iterator::Repeat::Map"] == 3_000_000
    iterator.nodes = {1: Node("Repeat", 150, 0, [7]), 7: Node("Map", 10, 30_000_000)}
    assert dict(pipelines.sample(1.0))[f"{STAGE_WORK}Iterator::Repeat::Map"] == 3_000_000


def test_stages_of_any_number_of_elements_are_counted(iterator: Iterator) -> None:
    """A filter takes as many as it takes, and several files are one stage."""
    iterator.nodes = {
        1: Node("Filter", 10, 0, [2], ratio=0),
        2: Node("Interleave", 40, 0, [3, 4], ratio=0),
        3: Node("TFRecord", 30, 30_000_000),
        4: Node("TFRecord", 10, 10_000_000),
    }
    told = dict(pipelines.sample(1.0))
    assert told[f"{STAGE_WORK}Iterator::Filter::Interleave::TFRecord"] == pytest.approx(4_000_000)


def test_one_that_cannot_tell_is_asked_once(iterator: Iterator, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where tuning is off."""
    asked = []

    def fails(it: Iterator) -> None:
        asked.append(it)
        raise RuntimeError("no model")

    monkeypatch.setattr(pipelines, "_model", fails)
    assert not list(pipelines.sample(1.0))
    assert not list(pipelines.sample(1.0))
    assert asked == [iterator]


def test_models_that_ask_in_a_circle_end(iterator: Iterator) -> None:
    """No damage hangs the sampler."""
    iterator.nodes = {1: Node("Root", 1, 1_000, [2]), 2: Node("Map", 1, 1_000, [1])}
    assert len(list(pipelines.sample(1.0))) <= 2 * pipelines.MAX_STAGES


def test_iterators_may_be_made_and_go_meanwhile(iterator: Iterator, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the training's thread, while the sampler's asks."""
    others: list[Iterator] = []

    def told(asked: Iterator) -> tuple[dict[int, Node], int]:
        others.append(Iterator())
        pipelines.watch(others[-1])
        return asked.nodes, 1

    monkeypatch.setattr(pipelines, "_model", told)
    iterator.nodes = {1: Node("Root", 10, 10_000)}
    assert dict(pipelines.sample(1.0)) == {f"{STAGE_WORK}Iterator::Root": 1_000}
    count = len(others)
    others.clear()
    assert count
    assert not list(pipelines.sample(1.0))  # nothing has been made since
