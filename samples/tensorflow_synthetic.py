"""A gradient tape in a tf.function on made-up data, timed, as synthetic benchmarks for TensorFlow 2 are written.

tl-run -np 2 python samples/tensorflow_synthetic.py
"""

import argparse
import timeit

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--batches", type=int, default=10, help="in one timing")
parser.add_argument("--timings", type=int, default=5)
parser.add_argument("--fp16-allreduce", action="store_true")
options = parser.parse_args()

hvd.init()

model = tf.keras.Sequential(
    [
        tf.keras.Input((options.width,)),
        *(tf.keras.layers.Dense(options.width, "relu") for _ in range(4)),
        tf.keras.layers.Dense(10),
    ]
)
optimizer = tf.keras.optimizers.SGD(0.01)
losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
data = tf.random.uniform([options.batch_size, options.width])
target = tf.random.uniform([options.batch_size], minval=0, maxval=9, dtype=tf.int64)


@tf.function
def benchmark_step(first_batch):
    with tf.GradientTape() as tape:
        loss = losses(target, model(data, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if first_batch:  # when the optimizer's variables are there
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return loss


benchmark_step(first_batch=True)
rates = []
for number in range(options.timings):
    seconds = timeit.timeit(lambda: benchmark_step(first_batch=False), number=options.batches)
    rates.append(options.batch_size * options.batches / seconds)
    if hvd.rank() == 0:
        print(f"timing {number}: {rates[-1]:.0f} samples/s on a rank")
if hvd.rank() == 0:
    print(f"{hvd.size() * np.mean(rates):.0f} samples/s on {hvd.size()} ranks")
