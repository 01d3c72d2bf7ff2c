"""Keras with Horovod's callbacks, as a script for MNIST is written; on made-up images, since nothing is downloaded here.

HOROVOD_TIMELINE=t.json tl-run -np 2 python samples/keras_images.py
"""

import argparse

import horovod.keras as hvd
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--images", type=int, default=1024)
parser.add_argument("--save", default="", help="a .keras file that rank 0 writes")
options = parser.parse_args()

hvd.init()

# Every class is a bright square somewhere else.
random = np.random.default_rng(hvd.rank())
labels = random.integers(0, 9, options.images // hvd.size())
images = random.normal(0, 0.3, (len(labels), 28, 28, 1)).astype("float32")
for image, label in zip(images, labels, strict=True):
    row, column = 9 * (label // 3), 9 * (label % 3)
    image[row : row + 9, column : column + 9] += 1

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(9),
    ]
)
scaled_rate = 0.005 * hvd.size()
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(scaled_rate))
model.compile(
    optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=False,
)

history = model.fit(
    images,
    labels,
    batch_size=32,
    epochs=options.epochs,
    verbose=2 if hvd.rank() == 0 else 0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_rate, warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(initial_lr=scaled_rate, multiplier=0.5, start_epoch=2),
    ],
)
losses = history.history["loss"]
print(f"rank {hvd.rank()}: loss {losses[0]:.3f} to {losses[-1]:.3f}")
if options.save and hvd.rank() == 0:
    model.save(options.save)
