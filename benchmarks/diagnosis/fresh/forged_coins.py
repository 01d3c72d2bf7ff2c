"""Forged coins (a Wasserstein GAN), two tapes in tf.functions: the critic learns from every batch, the forger from every third.

So every third step is longer, has two updates, and reduces the gradients of both; the penalty needs a tape within the tape.
Nothing is wrong.
"""

import frameworks_run
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

SIDE, NOISE, BATCH, CRITIC_STEPS = 28, 32, 24, 3
layers = tf.keras.layers


def make_coins(seed: int, count: int) -> np.ndarray:
    """Discs with a rim and a few rays."""
    dice = np.random.default_rng(seed)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    away, angle = np.hypot(x, y), np.arctan2(y, x)
    rays = dice.integers(3, 9, (count, 1, 1))
    coins = (away < 0.9) * 0.5 + (np.abs(away - 0.85) < 0.07) * 0.5 + (away < 0.6) * np.cos(angle * rays) * 0.4
    return (coins + dice.normal(0, 0.03, coins.shape)).astype("float32")[..., None]


run = frameworks_run.Run(hvd)
tf.keras.utils.set_random_seed(20)
forger = tf.keras.Sequential(
    [
        tf.keras.Input((NOISE,)),
        layers.Dense(7 * 7 * 24, "relu"),
        layers.Reshape((7, 7, 24)),
        layers.Conv2DTranspose(24, 4, strides=2, padding="same", activation="relu"),
        layers.Conv2DTranspose(1, 4, strides=2, padding="same"),
    ]
)
critic = tf.keras.Sequential(
    [
        tf.keras.Input((SIDE, SIDE, 1)),
        layers.Conv2D(24, 4, strides=2, padding="same", activation="leaky_relu"),
        layers.Conv2D(32, 4, strides=2, padding="same", activation="leaky_relu"),
        layers.Flatten(),
        layers.Dense(1),
    ]
)
optimizers = {}
for name, network in (("forger", forger), ("critic", critic)):
    optimizers[name] = tf.keras.optimizers.Adam(2e-4, beta_1=0.0, beta_2=0.9)
    optimizers[name].build(network.trainable_variables)
    hvd.broadcast_variables(network.variables, root_rank=0)


@tf.function
def criticise(coins: tf.Tensor) -> tf.Tensor:
    """Real coins get more than forged ones, and the score changes by one for a change of one."""
    forged = forger(tf.random.normal([BATCH, NOISE]))
    share = tf.random.uniform([BATCH, 1, 1, 1])
    between = share * coins + (1 - share) * forged
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(between)
            scores = critic(between)
        slope = tf.norm(tf.reshape(inner.gradient(scores, between), [BATCH, -1]), axis=1)
        distance = tf.reduce_mean(critic(coins)) - tf.reduce_mean(critic(forged))
        loss = 10 * tf.reduce_mean(tf.square(slope - 1)) - distance
    variables = critic.trainable_variables
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
    optimizers["critic"].apply_gradients(zip(gradients, variables, strict=True))
    return distance


@tf.function
def forge() -> None:
    """Forged coins get more than before."""
    with tf.GradientTape() as tape:
        loss = -tf.reduce_mean(critic(forger(tf.random.normal([BATCH, NOISE]))))
    variables = forger.trainable_variables
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
    optimizers["forger"].apply_gradients(zip(gradients, variables, strict=True))


coins = tf.data.Dataset.from_tensor_slices(make_coins(run.rank, 960)).cache().shuffle(960).repeat()
distances = []
for batch in run.batches(coins.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)):
    distances.append(criticise(batch))
    if run.step % CRITIC_STEPS == 0:
        forge()
if run.rank == 0:
    print(f"distance {float(distances[0]):.3f} to {float(tf.reduce_mean(distances[-10:])):.3f}")
run.close()
