"""Lightning, which starts the other rank itself: PACKAGE STRATEGY TIMELINE."""

import sys
from importlib import import_module

import torch
from layers import BATCH, STEPS, Network, Points
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

package, strategy, timeline = sys.argv[1:]
pl = import_module("lightning.pytorch" if package == "lightning" else package)
from tlkit.integrations.lightning import TimelineCallback  # looks for what is loaded


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def configure_model(self) -> None:
        if strategy == "fsdp":
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        return self.network(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def strategy_named(name: str):
    if name == "ddp":
        return pl.strategies.DDPStrategy(process_group_backend="gloo")
    return pl.strategies.ModelParallelStrategy(2, 1, process_group_backend="gloo")


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy_named(strategy),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[TimelineCallback(timeline)],
    )
    trainer.fit(Module(), DataLoader(Points(2 * STEPS * BATCH), batch_size=BATCH))
