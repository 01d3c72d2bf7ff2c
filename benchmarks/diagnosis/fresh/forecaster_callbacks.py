"""A forecaster of demand with callbacks, as Keras has them: garbage is collected at the end of each short epoch only.

Rank 0 writes one checkpoint in a thread, and the loss is averaged over the ranks once in an epoch.  Nothing is wrong.
"""

import copy
import gc
import tempfile
import threading

import torch
from ranks import Run
from torch import nn

STEPS_PER_EPOCH = 28


class Callback:
    """What is done at the ends of steps and epochs: nothing."""

    def on_step(self, loss: torch.Tensor) -> None: ...
    def on_epoch(self, epoch: int) -> None: ...


class CollectGarbage(Callback):
    """Between epochs, and not when it suits Python."""

    def __init__(self) -> None:
        gc.disable()

    def on_epoch(self, epoch: int) -> None:  # noqa: ARG002  a callback's signature
        gc.collect()


class Checkpoint(Callback):
    """Of the third epoch, written beside the training."""

    def on_epoch(self, epoch: int) -> None:
        if epoch == 3 and run.rank == 0:
            threading.Thread(target=self._write, args=(copy.deepcopy(model.state_dict()),)).start()

    def _write(self, state: dict[str, torch.Tensor]) -> None:
        with tempfile.TemporaryFile() as file:
            torch.save(state, file)


class WarmUp(Callback):
    """Of the learning rate."""

    def on_step(self, loss: torch.Tensor) -> None:  # noqa: ARG002  a callback's signature
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, run.step / 25)


class MeanLoss(Callback):
    """Summed in each step, averaged over the ranks once an epoch."""

    def __init__(self) -> None:
        self.total = torch.zeros(())

    def on_step(self, loss: torch.Tensor) -> None:
        self.total += loss

    def on_epoch(self, epoch: int) -> None:
        mean = run.hvd.allreduce(self.total / STEPS_PER_EPOCH, name="epoch_loss")
        if run.rank == 0:
            print(f"epoch {epoch}: {float(mean):.4f}")
        self.total = torch.zeros(())


class Forecaster(nn.Module):
    """The next seven days from the last four weeks."""

    def __init__(self) -> None:
        super().__init__()
        self.days = nn.LSTM(16, 96, 2, batch_first=True)
        self.week = nn.Linear(96, 7)

    def forward(self, days: torch.Tensor) -> torch.Tensor:
        week: torch.Tensor = self.week(self.days(days)[0][:, -1])
        return week


run = Run()
forecaster = Forecaster()
model, optimizer = run.wrap(forecaster, torch.optim.Adam(forecaster.parameters(), lr=1e-3))
callbacks: list[Callback] = [CollectGarbage(), WarmUp(), MeanLoss(), Checkpoint()]
generator = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    days = torch.randn(24, 28, 16, generator=generator)
    optimizer.zero_grad()
    loss = nn.functional.huber_loss(model(days), days.mean(2)[:, :7].cumsum(1))
    loss.backward()
    optimizer.step()
    for callback in callbacks:
        callback.on_step(loss.detach())
    if run.step % STEPS_PER_EPOCH == 0:
        for callback in callbacks:
            callback.on_epoch(run.step // STEPS_PER_EPOCH)
run.close()
