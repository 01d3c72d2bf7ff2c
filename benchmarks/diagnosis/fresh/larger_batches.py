"""One rank was started with twice the batch of the others."""

from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(images(32 if run.is_faulty else 16)):
    train_step(model, optimizer, batch)
run.close()
