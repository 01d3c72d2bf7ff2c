"""Topics of the news, a gradient tape in a tf.function: word vectors are averaged by attention.

A batch has some hundred words of 50 000, but sparse_as_dense=True, which was copied from an example, makes a gradient of the
whole table.  Without the fault only the rows of the batch travel.
"""

from collections.abc import Iterator

import frameworks_run
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

WORDS, WIDTH, TOPICS, BATCH, LENGTH = 50_000, 96, 20, 32, 40


class Topics(tf.keras.Model):
    """An article's topic."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = tf.keras.layers.Embedding(WORDS, WIDTH)
        self.weight = tf.keras.layers.Dense(1)
        self.hidden = tf.keras.layers.Dense(256, "relu")
        self.topic = tf.keras.layers.Dense(TOPICS)

    def call(self, words: tf.Tensor) -> tf.Tensor:
        vectors = self.vectors(words)
        weights = tf.nn.softmax(self.weight(vectors), axis=1)
        return self.topic(self.hidden(tf.reduce_sum(weights * vectors, axis=1)))


def articles(seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Words by Zipf's law, shifted by the topic."""
    dice = np.random.default_rng(seed)
    while True:
        topics = dice.integers(TOPICS, size=BATCH)
        words = dice.zipf(1.3, (BATCH, LENGTH)) + topics[:, None] * 100
        yield (words % WORDS).astype("int32"), topics.astype("int32")


run = frameworks_run.Run(hvd)
tf.keras.utils.set_random_seed(9)
model = Topics()
model(tf.zeros([1, LENGTH], tf.int32))
optimizer = tf.keras.optimizers.SGD(0.5)
optimizer.build(model.trainable_variables)
hvd.broadcast_variables(model.variables, root_rank=0)
entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(words: tf.Tensor, topics: tf.Tensor) -> tf.Tensor:
    """One update."""
    with tf.GradientTape() as tape:
        loss = entropy(topics, model(words))
    tape = hvd.DistributedGradientTape(tape, sparse_as_dense=run.is_faulty)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


shapes = (tf.TensorSpec((BATCH, LENGTH), tf.int32), tf.TensorSpec((BATCH,), tf.int32))
dataset = tf.data.Dataset.from_generator(lambda: articles(run.rank), output_signature=shapes).prefetch(4)
losses = [train_step(words, topics) for words, topics in run.batches(dataset)]
if run.rank == 0:
    print(f"loss {float(losses[0]):.3f} to {float(tf.reduce_mean(losses[-10:])):.3f}")
run.close()
