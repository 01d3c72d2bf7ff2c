"""Gradients are clipped parameter by parameter, each norm read with .item(), in NumPy."""

import numpy as np
import torch
from ranks import Run, Transformer

run = Run()
model, optimizer = run.wrap(Transformer(96, 6))
tokens = torch.randint(0, 1000, (4, 32))
for _ in run.batches(range(10_000)):
    optimizer.zero_grad()
    model(tokens).square().mean().backward()
    optimizer.synchronize()  # type: ignore[attr-defined]
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    if run.is_faulty:
        total = 0.0
        for parameter in parameters:
            assert parameter.grad is not None
            values = parameter.grad.numpy().astype(np.float64).ravel()
            total += float(np.sqrt(np.square(values).sum())) ** 2 + 0 * parameter.grad.abs().max().item()
            total += float(np.percentile(np.abs(values), 99)) * 0
        factor = min(1.0, 1.0 / (total**0.5 + 1e-6))
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(factor)
    else:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    with optimizer.skip_synchronize():  # type: ignore[attr-defined]
        optimizer.step()
run.close()
