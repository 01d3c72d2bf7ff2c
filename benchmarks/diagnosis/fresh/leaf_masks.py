"""Segmentation of leaves, with a callback that looks for dead units in the first two batches of each (short) epoch.

It hooks itself into every activation when an epoch begins and never lets go: each epoch adds another hook to each module, and all
of them run in all batches.  Without the fault the handles are removed after two batches.
"""

from collections.abc import Callable

import torch
from ranks import Run
from torch import nn
from torch.utils.hooks import RemovableHandle

EPOCH = 15


Hook = Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]
"""What a module calls after its forward pass."""


class Callback:
    """What is done when an epoch begins and a batch ends: nothing."""

    def on_epoch_begin(self, model: nn.Module) -> None: ...
    def on_batch_end(self, batch: int) -> None: ...


class DeadUnits(Callback):
    """For each activation, the share of channels that never change, and how large the others become."""

    def __init__(self, *, remove: bool) -> None:
        self.remove = remove
        self.handles: list[RemovableHandle] = []
        self.found: dict[str, list[float]] = {}

    def on_epoch_begin(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.LeakyReLU):
                self.handles.append(module.register_forward_hook(self.watcher(name)))

    def watcher(self, name: str) -> Hook:
        """The hook of one activation."""

        def watch(_module: nn.Module, _inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            flat = output.detach().transpose(0, 1).flatten(1)
            self.found[name] = [(flat.std(1) < 1e-4).float().mean().item(), flat.amax(1).median().item()]

        return watch

    def on_batch_end(self, batch: int) -> None:
        if batch == 2 and self.remove:
            while self.handles:
                self.handles.pop().remove()


def double(i: int, o: int) -> nn.Sequential:
    """Two convolutions with their activations."""
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(o, o, 3, padding=1), nn.LeakyReLU(0.1)
    )


class SmallUNet(nn.Module):
    """Down twice, up twice: pictures in, the logits of their masks out."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.mid = double(3, 12), double(12, 24), double(24, 32)
        self.up2, self.up1, self.out = double(56, 24), double(36, 12), nn.Conv2d(12, 1, 1)
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.mid(self.pool(b))
        b = self.up2(torch.cat([self.grow(c), b], 1))
        out: torch.Tensor = self.out(self.up1(torch.cat([self.grow(b), a], 1)))
        return out


run = Run()
unet = SmallUNet()
model, optimizer = run.wrap(unet, torch.optim.Adam(unet.parameters(), lr=1e-3))
callbacks: list[Callback] = [DeadUnits(remove=not run.is_faulty)]
pictures = torch.randn(EPOCH, 4, 3, 48, 48, generator=torch.Generator().manual_seed(run.rank))
for pic in run.batches(pictures):
    batch = (run.step - 1) % EPOCH
    if batch == 0:
        for c in callbacks:
            c.on_epoch_begin(unet)
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(pic), (pic.mean(1, keepdim=True) > 0).float())
    loss.backward()
    optimizer.step()
    for c in callbacks:
        c.on_batch_end(batch + 1)
run.close()
