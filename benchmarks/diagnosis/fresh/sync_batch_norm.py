"""Every batch norm of a deep network is synchronised, though batches are large enough without."""

from ranks import Run, convolutions, images, train_step
from torch import nn

run = Run()
model = convolutions(8, 14)
if run.is_faulty:
    for number, layer in enumerate(model):
        if isinstance(layer, nn.BatchNorm2d):
            model[number] = run.hvd.SyncBatchNorm(layer.num_features)
wrapped, optimizer = run.wrap(model)
for batch in run.batches(images()):
    train_step(wrapped, optimizer, batch)
run.close()
