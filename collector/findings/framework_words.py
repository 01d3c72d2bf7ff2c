"""Remedies in the words of the framework that the training script is written in: this is the one place that knows them.

A trace says whose it is (`TraceMeta.framework`).  Where it does not, the words are PyTorch's.
"""

from enum import StrEnum
from typing import Final

from ..facts import Facts


class Advice(StrEnum):
    """What is to be done, apart from how a framework calls it."""

    FASTER_LOADER = "faster loader"
    MORE_WORKERS = "more workers"
    PERSISTENT_WORKERS = "persistent workers"
    COPIES_AHEAD = "copies ahead"
    FUSED_UPDATE = "fused update"
    LESS_HOST_CODE = "less host code"
    BATCHES_AHEAD = "batches ahead"
    COMPILE_ONCE = "compile once"
    SAVE_IN_BACKGROUND = "save in background"
    FEWER_LAUNCHES = "fewer launches"
    INPUT_AHEAD = "input ahead"
    COPY_WITHOUT_BLOCKING = "copy without blocking"
    READ_LATER = "read later"
    SHOW_HOST = "show host"
    FEWER_BYTES = "fewer bytes"
    REDUCE_EARLIER = "reduce earlier"
    SPARSE_GRADIENT = "sparse gradient"


_PIPELINE: Final = (
    "end the pipeline with .prefetch(tf.data.AUTOTUNE), give map() num_parallel_calls=tf.data.AUTOTUNE, keep what "
    "fits with cache() "
    "before random transforms, and read TFRecord files side by side with interleave(…, num_parallel_calls=tf.data.AUTOTUNE)"
)

_TORCH: Final = {
    Advice.FASTER_LOADER: "Make the loader faster, or raise DataLoader(num_workers=…).",
    Advice.MORE_WORKERS: (
        "More or faster loader workers: DataLoader(num_workers=…, persistent_workers=True, prefetch_factor=4)."
    ),
    Advice.PERSISTENT_WORKERS: (
        "Keep the workers: DataLoader(persistent_workers=True), and one loader for all epochs; or make epochs longer "
        "(a sampler that goes round several times)."
    ),
    Advice.COPIES_AHEAD: (
        "DataLoader(pin_memory=True) and batch.to(device, non_blocking=True), one batch ahead, so that copies run "
        "behind computation; send smaller types (uint8 images) and convert on the device."
    ),
    Advice.FUSED_UPDATE: (
        "{name}(…, fused=True) updates in one pass (SGD, Adam, AdamW, Adagrad have it); look for work of your own "
        "in step hooks; or update less often ({accumulation})."
    ),
    Advice.LESS_HOST_CODE: (
        "Look at what the loop does besides the model (logging, metrics, .item(), evaluation): do it less often."
    ),
    Advice.BATCHES_AHEAD: (
        "Make batches while the model computes: in a Dataset behind DataLoader(num_workers=…), or, where that waits for files "
        "or a network rather than computes, by a thread of your own that puts some batches ahead into a queue.Queue."
    ),
    Advice.COMPILE_ONCE: (
        "Hand over the same shapes in every step: pad to a few lengths, drop the last incomplete batch, mark what changes "
        "(torch.compile(dynamic=True), torch._dynamo.mark_dynamic); TORCH_LOGS=recompiles says why."
    ),
    Advice.SAVE_IN_BACKGROUND: "Save less often, or in the background (torch.distributed.checkpoint.async_save).",
    Advice.FEWER_LAUNCHES: (
        "Have the host do less for each kernel: torch.compile(mode='reduce-overhead') or CUDA graphs, larger batches, fused "
        "optimizers."
    ),
    Advice.INPUT_AHEAD: (
        "Prepare the input ahead: DataLoader(num_workers=…, prefetch_factor=…) or a thread one batch ahead, or decode and "
        "transform on the device."
    ),
    Advice.COPY_WITHOUT_BLOCKING: (
        "Copy without blocking: pinned memory (pin_memory=True, tensor.pin_memory()) with non_blocking=True; batch "
        "reads of results (.cpu(), .tolist(), .item()) and do them once every some steps."
    ),
    Advice.READ_LATER: (
        "Do not read values of the device in the loop (.item(), bool(tensor), nonzero, print, "
        "torch.cuda.synchronize()): keep them on the device and read them once every some steps."
    ),
    Advice.FEWER_BYTES: (
        "Larger buckets (DistributedDataParallel(bucket_cap_mb=…)) if the collectives are small, a compression hook if they "
        "are large: a profile with record_shapes=True tells their sizes."
    ),
    Advice.SHOW_HOST: (
        "Find out what the host does meanwhile, and do it less often or elsewhere: torch.profiler.profile(with_stack=True) "
        "shows what Python does here."
    ),
    Advice.SPARSE_GRADIENT: "nn.Embedding(sparse=True) with sparse_as_dense=False if few rows change.",
    Advice.REDUCE_EARLIER: (
        "Reduce each gradient as soon as it is ready: {name} does it during backward; a loop that calls allreduce after "
        "backward, or gradients that are clipped or unscaled before they are reduced, wait for the last one."
    ),
}
_TENSORFLOW: Final = {
    Advice.FASTER_LOADER: f"Make batches ahead of the training: {_PIPELINE}.",
    Advice.MORE_WORKERS: f"Make batches ahead of the training: {_PIPELINE}.",
    Advice.PERSISTENT_WORKERS: (
        "Keep the input pipeline: one dataset.repeat() and one iterator for all epochs, with a fixed number of steps "
        "an epoch."
    ),
    Advice.COPIES_AHEAD: (
        "End the pipeline with .prefetch(tf.data.AUTOTUNE), or tf.data.experimental.prefetch_to_device('/gpu:0'), so "
        "that copies run "
        "behind computation; send smaller types (uint8 images) and cast on the device."
    ),
    Advice.FUSED_UPDATE: (
        "Update inside of the tf.function of the step, with jit_compile=True where XLA can compile it, which makes "
        "one pass of an "
        "update; use fewer, larger variables; or update less often."
    ),
    Advice.LESS_HOST_CODE: (
        "Put the whole step into one tf.function, and look at what the loop does besides it (.numpy(), print, "
        "metrics, summaries, "
        "functions that are traced again): do it less often."
    ),
    Advice.COMPILE_ONCE: (
        "Call the tf.function with tensors in place of Python's numbers, and with the same shapes and types in every step: "
        "batch(drop_remainder=True), padding to a few lengths, an input_signature with None for what changes, "
        "reduce_retracing=True; make functions once, outside of the loop."
    ),
    Advice.SAVE_IN_BACKGROUND: (
        "Save less often, or in the background: tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)."
    ),
    Advice.FEWER_LAUNCHES: (
        "Have the host do less for each kernel: the whole step in one tf.function, jit_compile=True, several steps in "
        "one call, "
        "larger batches."
    ),
    Advice.INPUT_AHEAD: f"Prepare the input ahead: {_PIPELINE}.",
    Advice.COPY_WITHOUT_BLOCKING: (
        "Read results (.numpy(), float(), print) once every some steps; let .prefetch(tf.data.AUTOTUNE) or "
        "tf.data.experimental.prefetch_to_device bring batches to the device ahead."
    ),
    Advice.READ_LATER: (
        "Do not read values of the device in the loop (.numpy(), float(loss), print, if on a tensor): keep them on "
        "the device and "
        "read them once every some steps."
    ),
    Advice.SHOW_HOST: (
        "Record with tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=1), which "
        "shows what Python "
        "does here."
    ),
}
_TENSORFLOW[Advice.BATCHES_AHEAD] = _TENSORFLOW[Advice.FASTER_LOADER]
_TENSORFLOW[Advice.SPARSE_GRADIENT] = (
    "tf.nn.embedding_lookup, whose gradient is sparse, with sparse_as_dense=False if few rows change."
)
_TENSORFLOW[Advice.REDUCE_EARLIER] = (
    "Reduce the gradients in groups, of which the first travel while backward computes the rest: "
    "hvd.DistributedGradientTape(tape, groups={groups}) in a tf.function; gradients that are clipped before they are reduced "
    "wait for the last one."
)
_TENSORFLOW[Advice.FEWER_BYTES] = (
    "If the collectives are small, let more travel together (tf.distribute.experimental.CommunicationOptions(bytes_per_pack=…) "
    "of MultiWorkerMirroredStrategy); if they are large, send half the bytes (mixed precision), or reduce gradients less often."
)
_KERAS: Final = _TENSORFLOW | {
    Advice.FASTER_LOADER: (
        f"Make batches ahead of the training: {_PIPELINE}; a keras.utils.PyDataset: workers=…, use_multiprocessing=True."
    ),
    Advice.PERSISTENT_WORKERS: "Keep the input pipeline: dataset.repeat() and fit(steps_per_epoch=…), or fewer, longer epochs.",
    Advice.FUSED_UPDATE: (
        "compile(jit_compile=True) where XLA can compile the step; fewer, larger variables; or update less often: "
        "gradient_accumulation_steps=… of the optimizer."
    ),
    Advice.LESS_HOST_CODE: (
        "compile(steps_per_execution=…) runs several batches in one call; look at what callbacks and metrics do after "
        "each batch, "
        "and do it less often."
    ),
    Advice.FEWER_LAUNCHES: (
        "Have the host do less for each kernel: compile(jit_compile=True, steps_per_execution=…), larger batches."
    ),
}
_KERAS[Advice.BATCHES_AHEAD] = _KERAS[Advice.FASTER_LOADER]
_KERAS[Advice.SPARSE_GRADIENT] = (
    "keras.layers.Embedding, whose gradient is sparse on TensorFlow, with sparse_as_dense=False if few rows change."
)
_KERAS[Advice.REDUCE_EARLIER] = (
    "Reduce the gradients in groups, of which the first travel while backward computes the rest: "
    "hvd.DistributedOptimizer(optimizer, groups={groups}), with TensorFlow as Keras's backend; gradients that are clipped "
    "before they are reduced wait for the last one."
)
_JAX: Final = {
    Advice.FASTER_LOADER: (
        "Make batches ahead of the training: a loader with workers or threads of its own "
        "(grain.python.DataLoader(worker_count=…), tf.data "
        "with .prefetch(tf.data.AUTOTUNE)), and jax.device_put of the next batch while the step runs."
    ),
    Advice.PERSISTENT_WORKERS: "Keep the loader: one iterator for all epochs (repeat), so that its workers start once.",
    Advice.COPIES_AHEAD: (
        "jax.device_put the next batch before waiting for this step, so that copies run behind computation; send "
        "smaller types (uint8 "
        "images) and convert on the device."
    ),
    Advice.FUSED_UPDATE: (
        "Compile the update with the step (one jax.jit with donate_argnums for parameters and optimizer state); or "
        "update less often "
        "(optax.MultiSteps)."
    ),
    Advice.LESS_HOST_CODE: (
        "Look at what the loop does besides the compiled step: make the next batch before the result of this one is awaited "
        "(block_until_ready, float(loss) once every some steps), or in a thread of its own; a profile with "
        "python_tracer_level=1 names it."
    ),
    Advice.COMPILE_ONCE: (
        "Hand over the same shapes and types in every step: pad to a few lengths, drop the last incomplete batch, no "
        "static_argnums for what changes, jax.jit outside of the loop; JAX_LOG_COMPILES=1 says which function it is."
    ),
    Advice.SAVE_IN_BACKGROUND: "Save less often, or in the background (orbax.checkpoint.AsyncCheckpointer).",
    Advice.FEWER_LAUNCHES: (
        "Have the host do less for each kernel: the whole step in one jax.jit, several steps in a jax.lax.scan, "
        "larger batches."
    ),
    Advice.INPUT_AHEAD: (
        "Prepare the input ahead: jax.device_put of the next batch while the step runs, a loader with workers of its own."
    ),
    Advice.COPY_WITHOUT_BLOCKING: (
        "Copy ahead with jax.device_put, and read results (np.asarray, float(), print) once every some steps."
    ),
    Advice.READ_LATER: (
        "Do not read values of the device in the loop (float(loss), .item(), print, block_until_ready): keep them on "
        "the device "
        "and read them once every some steps."
    ),
    Advice.SHOW_HOST: "Record with jax.profiler.ProfileOptions' python_tracer_level = 1, which shows what Python does here.",
}
_JAX[Advice.FEWER_BYTES] = (
    "If the collectives are small, let XLA combine them (XLA_FLAGS=--xla_gpu_all_reduce_combine_threshold_bytes=…); if they are "
    "large, reduce gradients in bfloat16, or less often (optax.MultiSteps)."
)
_JAX[Advice.SPARSE_GRADIENT] = "only the rows that the batch needs as an argument of the step if few change."
_JAX[Advice.REDUCE_EARLIER] = (
    "A compiled step hands its gradients over when all are there: reduce them less often (optax.MultiSteps), or give each step "
    "more rows."
)
_JAX[Advice.MORE_WORKERS] = _JAX[Advice.BATCHES_AHEAD] = _JAX[Advice.FASTER_LOADER]
#: Frameworks whose steps are one call of a compiled function.
COMPILED: Final = frozenset({"tensorflow", "keras", "jax"})
_WORDS: Final = {"tensorflow": _TENSORFLOW, "keras": _KERAS, "jax": _JAX}


def is_of_strategy(facts: Facts) -> bool:
    """Whether the collectives are those of tf.distribute, which knows neither Horovod's settings nor PyTorch's."""
    meta = facts.trace.meta
    return meta.runtime == "torch" and meta.framework in {"tensorflow", "keras"}


def advise(facts: Facts, advice: Advice, **names: str) -> str:
    """A remedy as the user of this trace's framework would write it."""
    return advice_of(facts.trace.meta.framework, advice, **names)


def advice_of(framework: str, advice: Advice, **names: str) -> str:
    """A remedy in the words of a framework, PyTorch's for one that is not known."""
    text = _WORDS.get(framework, _TORCH)[advice]
    return text.format(**names) if names else text


def is_tensorflow(facts: Facts) -> bool:
    """Whether batches come from tf.data, as far as one can know."""
    return facts.trace.meta.framework in {"tensorflow", "keras"}


def is_torch(facts: Facts) -> bool:
    """Whether batches come from a DataLoader, as far as one can know."""
    return facts.trace.meta.framework not in _WORDS
