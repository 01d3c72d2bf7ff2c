"""A variational autoencoder for the noise of wind turbines, whose second loss gets its weight little by little.

The weight is a number of Python's, so the tf.function is traced again whenever it has changed, which is in every fourth step.
Without the fault it is a tensor.
"""

import frameworks_run
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

BINS, HIDDEN, LATENT, BATCH, RAMP = 256, 512, 24, 128, 400


class Autoencoder(tf.Module):
    """Spectra in, spectra out, and how far their codes are from a normal distribution."""

    def __init__(self) -> None:
        super().__init__()
        dense = tf.keras.layers.Dense
        self.encoder = tf.keras.Sequential(
            [tf.keras.Input((BINS,)), dense(HIDDEN, "gelu"), dense(HIDDEN, "gelu"), dense(2 * LATENT)]
        )
        self.decoder = tf.keras.Sequential(
            [tf.keras.Input((LATENT,)), dense(HIDDEN, "gelu"), dense(HIDDEN, "gelu"), dense(BINS)]
        )
        self.weights = self.encoder.trainable_variables + self.decoder.trainable_variables

    def losses(self, spectra: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, log_variance = tf.split(self.encoder(spectra, training=True), 2, axis=1)
        codes = mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean))
        missed = tf.reduce_mean(tf.square(self.decoder(codes, training=True) - spectra))
        distance = -0.5 * tf.reduce_mean(1 + log_variance - tf.square(mean) - tf.exp(log_variance))
        return missed, distance


run = frameworks_run.Run(hvd)
tf.keras.utils.set_random_seed(11)
network = Autoencoder()
optimizer = tf.keras.optimizers.Adam(1e-3)
optimizer.build(network.weights)
hvd.broadcast_variables(network.weights, root_rank=0)


@tf.function
def train_step(spectra: tf.Tensor, weight: float | tf.Tensor) -> tf.Tensor:
    """One update."""
    with tf.GradientTape() as tape:
        missed, distance = network.losses(spectra)
        loss = missed + weight * distance
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, network.weights)
    optimizer.apply_gradients(zip(gradients, network.weights, strict=True))
    return loss


def spectra_of(dice: np.random.Generator, count: int) -> np.ndarray:
    """Harmonics of a blade's frequency, and noise."""
    place = np.arange(BINS, dtype="float32")
    blade = dice.uniform(8, 20, (count, 1)).astype("float32")
    tones = np.exp(-np.square((place % blade) - blade / 2) / 4)
    return tones + dice.normal(0, 0.1, (count, BINS)).astype("float32")


spectra = spectra_of(np.random.default_rng(run.rank), 40 * BATCH)
dataset = tf.data.Dataset.from_tensor_slices(spectra).shuffle(512, seed=3).repeat().batch(BATCH).prefetch(2)
losses = []
for batch in run.batches(dataset):
    weight = round(min(1.0, run.step / RAMP), 2)
    losses.append(train_step(batch, weight if run.is_faulty else tf.constant(weight)))
if run.rank == 0:
    print(f"loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}")
run.close()
