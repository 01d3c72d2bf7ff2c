"""Every eighth step all ranks validate on a part of the data, and average what they found."""

import torch
from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
    if run.is_faulty and run.step % 8 == 0:
        model.eval()
        with torch.no_grad():
            loss = torch.stack([model(batch).square().mean() for _ in range(20)]).mean()
        model.train()
        if run.hvd is not None:
            run.hvd.allreduce(loss, name="validation")
        else:
            torch.distributed.all_reduce(loss)
run.close()
