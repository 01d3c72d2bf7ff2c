"""A small network, in which nothing is wrong."""

from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions(12, 5))
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
run.close()
