"""What to change in a tf.data pipeline, by its slowest stage."""

import re
from typing import Final

from ..model.stages import Pipeline, Stage
from ..model.words import milliseconds, shorten

_READERS: Final = re.compile(
    r"TFRecord|TextLine|FixedLengthRecord|Interleave|LMDB|Avro|Parquet|CSV|ListFiles|MatchingFiles|RecordIO",
    re.IGNORECASE,
)
_MAX_PATH: Final = 120
#: A stage is one call at a time, whatever it may, if no more threads than this are seen in it.
_PARALLEL: Final = re.compile(r"^Parallel")


#: Kinds of stages, as they are called in a program.
_NAMES: Final = {
    "Map": "map()",
    "ParallelMap": "map()",
    "MapAndBatch": "map() with batch()",
    "Batch": "batch()",
    "ParallelBatch": "batch()",
    "PaddedBatch": "padded_batch()",
    "Shuffle": "shuffle()",
    "ShuffleAndRepeat": "shuffle()",
    "TFRecord": "TFRecordDataset",
    "Filter": "filter()",
    "FlatMap": "flat_map() or from_generator()",
    "Generator": "from_generator()",
    "Interleave": "interleave()",
    "ParallelInterleave": "interleave()",
    "Zip": "zip()",
    "Cache": "cache()",
    "MemoryCache": "cache()",
    "Prefetch": "prefetch()",
}
MAX_KIND: Final = 40


def name_stage(stage: Stage) -> str:
    """A stage as a reader of the program knows it, with its place in the profile."""
    what = _NAMES.get(stage.kind) or shorten(stage.kind, MAX_KIND)
    function = "the function of " if stage.has_function else ""
    return f"{function}{what}"


def stage_sentence(pipeline: Pipeline) -> str:
    """How long the slowest stage takes, to go behind the sentence on the wait."""
    slowest = pipeline.stages[0]
    threads = f" on {slowest.threads} threads" if slowest.threads > 1 else ""
    return (
        f"; of its input pipeline {name_stage(slowest)} is the slowest stage with {milliseconds(slowest.own_ns)} of "
        f"work a batch{threads} "
        f"({shorten(slowest.path, _MAX_PATH)})"
    )


def is_serial(stage: Stage) -> bool:
    """Whether a stage works on one element after the other."""
    if _PARALLEL.match(stage.kind) or stage.kind == "MapAndBatch":
        return stage.parallelism == 1
    return True


def stage_remedy(pipeline: Pipeline, *, can_overlap: bool) -> str:
    """What to change; first what makes batches behind the training, if there are cores for it."""
    slowest = pipeline.stages[0]
    changes = []
    if can_overlap and not pipeline.has_prefetch:
        changes.append(
            "end the pipeline with .prefetch(tf.data.AUTOTUNE), so that the next batch is made while this one is trained on"
        )
    changes += _of_stage(slowest, can_overlap=can_overlap)
    text = "; ".join(changes)
    return f"{text[0].upper()}{text[1:]}."


def _of_stage(stage: Stage, *, can_overlap: bool) -> list[str]:  # noqa: PLR0911  a kind of stage each
    if _READERS.search(stage.kind) and not stage.has_function:
        return [
            (
                "read files side by side: tf.data.Dataset.list_files(…).interleave(tf.data.TFRecordDataset, "
                "cycle_length=tf.data.AUTOTUNE, num_parallel_calls=tf.data.AUTOTUNE), with cache() for what fits in memory"
            )
        ]
    if stage.kind in {"Generator", "FlatMap"}:
        return [
            (
                "from_generator and flat_map run one element after the other, Python under one lock: read with TFRecordDataset "
                "or tensors, or several generators through interleave(…, num_parallel_calls=tf.data.AUTOTUNE)"
            )
        ]
    if stage.kind in {"Shuffle", "ShuffleAndRepeat"}:
        return [
            "shuffle() fills its buffer first: a smaller buffer_size, or shuffle the names of files instead of samples"
        ]
    if "Map" in stage.kind or stage.kind == "Filter" or stage.has_function:
        cheaper = (
            "make its function cheaper (fewer transforms, whole batches at a time: batch() before map()), keep what "
            "it makes with cache(), or "
            "make it once and store it as TFRecord"
        )
        if is_serial(stage) and can_overlap:
            return [f"map(…, num_parallel_calls=tf.data.AUTOTUNE) for {name_stage(stage)}", cheaper]
        return [cheaper]
    if "Batch" in stage.kind:
        return ["batch(…, num_parallel_calls=tf.data.AUTOTUNE), or smaller samples (uint8 instead of float32)"]
    return ["keep what it makes with cache(), or give map() and interleave() num_parallel_calls=tf.data.AUTOTUNE"]
