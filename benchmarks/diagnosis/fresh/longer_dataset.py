"""One rank has more data than the others, which join when theirs is used up."""

from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
if run.rank:
    run.args.steps = run.args.steps * 2 // 3
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
run.hvd.join()
run.close()
