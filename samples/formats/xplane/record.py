"""Records the profiles beside it: `python record.py slow-map|no-prefetch|healthy|keras|jax FOLDER`.

`pip install tensorflow-cpu jax optax`; each has one known fault in its input, or none.  JAX writes where its sources lie, unless
JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX=".*/" is set.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS = 10


def _busy(value: Any) -> Any:
    """A transformation that takes some milliseconds of a core."""
    import tensorflow as tf  # noqa: PLC0415

    matrix = tf.random.stateless_normal([256, 256], [1, 2]) + tf.cast(value, tf.float32)
    for _ in range(4):
        matrix = tf.linalg.matmul(matrix, matrix) / 256.0
    return tf.reshape(matrix[:2], [512])


def _dataset(kind: str) -> Any:
    import tensorflow as tf  # noqa: PLC0415
    from tensorflow.python.data.experimental.ops import testing  # noqa: PLC0415  a dataset that is as slow as one says

    numbers = tf.data.Dataset.range(100_000)
    options = tf.data.Options()
    # TensorFlow would mend both faults by itself where it can; user functions in Python it cannot.
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_and_batch_fusion = False

    def cheap(value: Any) -> Any:
        return tf.random.stateless_normal([512], [1, 2]) + tf.cast(value, tf.float32)

    if kind in {"slow-map", "keras"}:
        return numbers.map(_busy).batch(4).with_options(options)
    if kind == "no-prefetch":
        slow = numbers.map(cheap, num_parallel_calls=tf.data.AUTOTUNE).batch(16)
        return slow.apply(testing.sleep(25_000)).with_options(options)
    return numbers.map(cheap, num_parallel_calls=tf.data.AUTOTUNE).batch(16).prefetch(tf.data.AUTOTUNE)


def _with_tensorflow(kind: str, folder: Path) -> None:
    import tensorflow as tf  # noqa: PLC0415

    model = tf.keras.Sequential([tf.keras.layers.Dense(1024, activation="relu"), tf.keras.layers.Dense(512)])
    optimizer = tf.keras.optimizers.SGD(0.01)
    profiled = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    if kind == "keras":
        model.compile(optimizer="sgd", loss="mse")
        pairs = _dataset(kind).map(lambda batch: (batch, batch))
        model.fit(pairs, steps_per_epoch=3, verbose=0)
        tf.profiler.experimental.start(str(folder), options=profiled)
        model.fit(pairs, steps_per_epoch=STEPS, verbose=0)
        tf.profiler.experimental.stop()
        return

    @tf.function
    def train(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    batches = iter(_dataset(kind))
    for _ in range(3):
        train(next(batches))
    tf.profiler.experimental.start(str(folder), options=profiled)
    for step in range(STEPS):
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            train(next(batches)).numpy()
    tf.profiler.experimental.stop()


def _with_jax(_kind: str, folder: Path) -> None:
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import optax  # noqa: PLC0415

    key = jax.random.PRNGKey(0)
    parameters = [jax.random.normal(key, (512, 1024)) * 0.02, jax.random.normal(key, (1024, 512)) * 0.02]
    optimizer = optax.adam(1e-3)
    state = optimizer.init(parameters)

    def loss_of(parameters: Any, batch: Any) -> Any:
        return jnp.mean((jnp.tanh(batch @ parameters[0]) @ parameters[1] - batch) ** 2)

    @jax.jit
    def train(parameters: Any, state: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    def batches() -> Iterator[Any]:
        while True:
            time.sleep(0.03)
            yield np.random.default_rng(0).random((128, 512), np.float32)

    loader = batches()
    for _ in range(3):
        parameters, state, _ = train(parameters, state, next(loader))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 2
    jax.profiler.start_trace(str(folder), profiler_options=options)
    for step in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            parameters, state, loss = train(parameters, state, next(loader))
            loss.block_until_ready()
    jax.profiler.stop_trace()


def main(kind: str, folder: Path) -> None:
    """Record one of them."""
    record: Callable[[str, Path], None] = _with_jax if kind == "jax" else _with_tensorflow
    record(kind, folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
