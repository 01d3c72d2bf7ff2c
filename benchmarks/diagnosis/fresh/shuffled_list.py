"""At each epoch the names of all files are sorted and shuffled anew, in Python."""

import random

from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
files = [f"part-{number % 977:05}/{number}.jpg" for number in range(150_000)]
for batch in run.batches(images()):
    if run.is_faulty and run.step % 10 == 0:
        files.sort()
        random.Random(run.step).shuffle(files)  # noqa: S311  no secret depends on it
    train_step(model, optimizer, batch)
run.close()
