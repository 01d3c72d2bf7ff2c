"""The compiler specialises for each shape, and every third batch has a new one."""

import torch
from ranks import Run, Transformer, train_step
from torch import nn

run = Run()
torch._dynamo.config.recompile_limit = 100  # noqa: SLF001  the documented way
model, optimizer = run.wrap(Transformer(64, 2))
compiled: nn.Module = torch.compile(model, backend="eager", dynamic=False)  # type: ignore[assignment]
for number in run.batches(range(10_000)):
    length = 40 + number // 3 if run.is_faulty else 50
    train_step(compiled, optimizer, torch.randint(0, 1000, (8, length)))
run.close()
