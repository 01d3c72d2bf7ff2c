"""Garbage is collected by hand in each step, and there are a million objects to look at."""

import gc

from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
index = [{"name": f"{number}.jpg", "labels": [number]} for number in range(150_000)]
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
    if run.is_faulty:
        gc.collect()
run.close()
