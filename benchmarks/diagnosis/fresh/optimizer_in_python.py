"""An optimizer that somebody wrote himself, which looks at every row of every parameter."""

from typing import Any

import torch
from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions(24, 6))


def clip_rows(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    for parameter in model.parameters():
        for row in parameter.data:
            row.mul_(torch.clamp(1 / (row.norm() + 1e-6), max=1.0))


if run.is_faulty:
    optimizer.register_step_post_hook(clip_rows)
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
run.close()
