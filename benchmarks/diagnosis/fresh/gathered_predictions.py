"""The predictions of each step are gathered on all ranks, for a metric that is printed at the end."""

import torch
from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
kept: list[torch.Tensor] = []
for batch in run.batches(images(16)):
    train_step(model, optimizer, batch)
    if run.is_faulty:
        with torch.no_grad():
            maps = model[:-3](batch)  # type: ignore[index]
        kept = [run.hvd.allgather(part, name=f"maps.{number}") for number, part in enumerate(maps.chunk(8))]
run.close()
