"""Parameters are broadcast from rank 0 again and again, to be on the safe side."""

from ranks import Run, convolutions, images, train_step
from torch import nn

run = Run()
model, optimizer = run.wrap(nn.Sequential(convolutions(), *[nn.Linear(10, 10) for _ in range(40)]))
for batch in run.batches(images(8)):
    train_step(model, optimizer, batch)
    if run.is_faulty:
        run.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
run.close()
