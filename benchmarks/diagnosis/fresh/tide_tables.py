"""Tides of a harbour from its gauge's log, a loop of our own over tf.data: each line of the log is a day of 1440 readings.

The lines are kept with cache(), and not what is made of them, so every epoch parses the same text again.  Without the fault
cache() comes after the parsing.
"""

import tempfile
from pathlib import Path

import frameworks_run
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

READINGS, BATCH, DAYS, AHEAD = 1440, 32, 384, 120


def write_log(path: Path, seed: int) -> None:
    """Two tides a day, and weather."""
    dice = np.random.default_rng(seed)
    minutes = np.arange(READINGS)
    with path.open("w", encoding="ascii") as file:
        for day in range(DAYS):
            high = 2 * np.sin(2 * np.pi * (minutes / 745 + day / 29.5)) + 0.4 * np.sin(2 * np.pi * minutes / 1440)
            file.write(";".join(f"{level:+.3f}m" for level in high + dice.normal(0, 0.05, READINGS)) + "\n")


def parse(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The day without its last two hours, smoothed, as frames; and those two hours."""
    text = tf.strings.regex_replace(tf.strings.split(line, ";"), r"^\+|m$", "")
    levels = tf.strings.to_number(text)
    past, ahead = levels[:-AHEAD], levels[-AHEAD:]
    frames = tf.signal.frame(past, 120, 40)
    return tf.stack([tf.reduce_mean(frames, 1), tf.math.reduce_std(frames, 1), frames[:, -1]], 1), ahead


run = frameworks_run.Run(hvd)
tf.keras.utils.set_random_seed(2)
folder = tempfile.TemporaryDirectory()
log = Path(folder.name) / "gauge.log"
write_log(log, run.rank)
lines = tf.data.TextLineDataset(str(log))
if run.is_faulty:
    days = lines.cache().map(parse, num_parallel_calls=tf.data.AUTOTUNE)
else:
    days = lines.map(parse, num_parallel_calls=tf.data.AUTOTUNE).cache()
dataset = days.shuffle(DAYS, seed=run.rank).repeat().batch(BATCH).prefetch(tf.data.AUTOTUNE)

model = tf.keras.Sequential(
    [
        tf.keras.Input((31, 3)),
        tf.keras.layers.Conv1D(64, 5, padding="same", activation="relu"),
        tf.keras.layers.Conv1D(64, 5, padding="same", activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dense(AHEAD),
    ]
)
optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(2e-3, run.steps))
optimizer.build(model.trainable_variables)
hvd.broadcast_variables(model.variables, root_rank=0)


@tf.function
def train(frames: tf.Tensor, ahead: tf.Tensor) -> tf.Tensor:
    """One update."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(model(frames, training=True) - ahead))
    tape = hvd.DistributedGradientTape(tape)
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 5.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


mean = tf.keras.metrics.Mean()
for frames, ahead in run.batches(dataset):
    mean.update_state(train(frames, ahead))
    if run.step % 40 == 0:
        if run.rank == 0:
            print(f"step {run.step}: off by {float(mean.result()):.3f} m")
        mean.reset_state()
folder.cleanup()
run.close()
