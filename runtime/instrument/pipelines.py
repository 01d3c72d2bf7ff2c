"""What the stages of a tf.data pipeline work on a batch, from the model of it that TensorFlow keeps to tune it.

Iterators are asked once a second, from the sampler's thread; those without a model, whose tuning is off, tell nothing.
"""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...timeline.vocabulary import STAGE, STAGE_CALLS, STAGE_WORK
from .sources import Sample

#: Stages that are told of a pipeline, those with most work.
MAX_STAGES: Final = 12
#: Nodes of a model that are looked at, and how deep they may lie.
_MAX_NODES: Final = 1000
_MAX_DEPTH: Final = 50


@dataclass(slots=True)
class _Seen:
    """What was known of the nodes of an iterator's model when it was asked last, by number: elements made, and work (ns)."""

    nodes: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Stage:
    """What the nodes of one path have made and worked since the last time."""

    above: str
    elements: int = 0
    worked_ns: int = 0
    calls: int = 1
    elements_for_one: float = 0.0
    """Elements of this stage that one of the stage above takes; 0 if only counting tells."""


_known: "weakref.WeakKeyDictionary[Any, _Seen]" = weakref.WeakKeyDictionary()


def watch(iterator: Any) -> None:
    """Ask this iterator as long as it lives."""
    _known[iterator] = _Seen()


def sample(_: float) -> Iterator[Sample]:
    """The work on a batch of each stage since the last time, of the pipeline that has worked most."""
    found: dict[str, tuple[float, int]] = {}
    # Taken in one go: the training may make an iterator meanwhile.
    for reference in _known.keyrefs():
        iterator = reference()
        seen = None if iterator is None else _known.get(iterator)
        if seen is None:
            continue
        try:
            nodes, output = _model(iterator)
        except Exception:  # not tuned, or a version that cannot tell
            _known.pop(iterator, None)
            continue
        told = _since(seen, nodes, output)
        if sum(work for work, _ in told.values()) > sum(work for work, _ in found.values()):
            found = told
    for path in sorted(found, key=lambda path: -found[path][0])[:MAX_STAGES]:
        work_ns, calls = found[path]
        yield f"{STAGE_WORK}{path}", work_ns
        if calls > 1:
            yield f"{STAGE_CALLS}{path}", calls


def _model(iterator: Any) -> tuple[Mapping[int, Any], int]:
    """Nodes of an iterator's model by number, and the number of the last one, which hands out batches."""
    import tensorflow as tf  # noqa: PLC0415  who has an iterator has it

    told = tf.data.experimental.get_model_proto(iterator)
    if len(told.nodes) > _MAX_NODES:
        raise ValueError("the pipeline has too many stages")
    return dict(told.nodes), int(told.output)


def _since(seen: _Seen, nodes: Mapping[int, Any], output: int) -> dict[str, tuple[float, int]]:
    """By path the work on a batch since the last time (ns), and how many calls it makes at a time.

    Repeating makes the nodes below anew in each epoch, and those before are forgotten with what they have worked: what counts is
    what the nodes that are there work on one element, and how many elements a batch takes.
    """
    stages: dict[str, _Stage] = {}
    now: dict[int, tuple[int, int]] = {}
    open_ = [(output, STAGE.removesuffix("::"), 1.0, 0)]
    while open_:
        number, above, for_one, depth = open_.pop()
        node = nodes.get(number)
        if node is None or depth > _MAX_DEPTH:
            continue
        path = f"{above}::{node.name}"
        made, worked_ns = now[number] = int(node.num_elements), int(node.processing_time)
        made_before, worked_before_ns = seen.nodes.get(number, (0, 0))
        stage = stages.setdefault(path, _Stage(above))
        stage.elements += max(made - made_before, 0)
        stage.worked_ns += max(worked_ns - worked_before_ns, 0)
        stage.elements_for_one = for_one
        stage.calls = max([stage.calls, *(int(one.value) for one in node.parameters if one.name == "parallelism")])
        open_ += [(below, path, float(node.ratio), depth + 1) for below in node.inputs]
    seen.nodes = now
    told: dict[str, tuple[float, int]] = {}
    for_batch: dict[str, float] = {}
    for path, stage in stages.items():  # those above come first
        taken = stages[stage.above].elements if stage.above in stages else 0
        for_one = stage.elements_for_one or stage.elements / max(taken, 1)
        for_batch[path] = for_one * for_batch.get(stage.above, 1.0)
        told[path] = (stage.worked_ns / stage.elements * for_batch[path] if stage.elements else 0.0, stage.calls)
    return told
