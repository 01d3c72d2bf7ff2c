"""Nutrients from infrared spectra of soil, a deep residual network: gradients by a tf.function, averaged after it.

Each gradient is averaged with a call of its own, which waits for it.  Without the fault the tape does it, all of them together.
"""

import frameworks_run
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

BANDS, NUTRIENTS, WIDTH, BLOCKS, BATCH = 210, 5, 96, 6, 160


class Block(tf.keras.layers.Layer):
    """Something is added to the features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = tf.keras.layers.LayerNormalization()
        self.inner = tf.keras.layers.Dense(WIDTH, "relu")
        self.outer = tf.keras.layers.Dense(WIDTH)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.outer(self.inner(self.norm(x)))


run = frameworks_run.Run(hvd)
tf.keras.utils.set_random_seed(13)
blocks = [Block() for _ in range(BLOCKS)]
model = tf.keras.Sequential(
    [tf.keras.Input((BANDS,)), tf.keras.layers.Dense(WIDTH), *blocks, tf.keras.layers.Dense(NUTRIENTS)]
)
variables = model.trainable_variables
optimizer = tf.keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
optimizer.build(variables)
hvd.broadcast_variables(model.variables, root_rank=0)
averages_itself = not run.is_faulty


@tf.function
def compute_gradients(spectra: tf.Tensor, nutrients: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The loss, and how it changes."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.huber(nutrients, model(spectra, training=True)))
    if averages_itself:
        tape = hvd.DistributedGradientTape(tape)
    return loss, tape.gradient(loss, variables)


@tf.function
def update(gradients: list[tf.Tensor]) -> None:
    """The weights."""
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


dice = np.random.default_rng(run.rank)
mixture = np.random.default_rng(0).normal(size=(NUTRIENTS, BANDS)).astype("float32")
nutrients = dice.normal(size=(30 * BATCH, NUTRIENTS)).astype("float32")
spectra = np.tanh(nutrients @ mixture) + dice.normal(0, 0.1, (30 * BATCH, BANDS)).astype("float32")
samples = tf.data.Dataset.from_tensor_slices((spectra, nutrients)).cache()
total = 0.0
for batch in run.batches(samples.shuffle(1000).batch(BATCH).repeat().prefetch(2)):
    loss, gradients = compute_gradients(*batch)
    if run.is_faulty:
        gradients = [hvd.allreduce(gradient) for gradient in gradients]
    update(gradients)
    total += loss
if run.rank == 0:
    print(f"mean loss {float(total) / run.step:.3f}")
run.close()
