"""Every twelfth step tries six learning rates, a forward pass of a large batch each."""

import torch
from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
validation = torch.randn(64, 3, 32, 32)
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
    if run.is_faulty and run.step % 12 == 0:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2):
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(rate * parameter.grad)
                model(validation).square().mean().item()
        model.load_state_dict(weights)
run.close()
