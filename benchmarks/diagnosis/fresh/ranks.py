"""What every script here has beside its training: the command line, the ranks, what records them, and a clock of its own.

HOROVOD_TIMELINE=t.json tl-run -np 2 python log_fsync.py --faulty
torchrun --nproc-per-node 2 moving_average.py --ddp traces --instrument --faulty
"""

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

import tlkit

SEED = 7


class Run:
    """One rank of a training; `ends_ns` holds when each step ended, its first entry when the first began."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=60)
        parser.add_argument("--faulty", action="store_true", help="train with what is wrong in this script")
        parser.add_argument("--rank", type=int, help="it is wrong on this rank only")
        parser.add_argument("--times", type=Path, help="a folder: write there when each step ended")
        parser.add_argument("--ddp", type=Path, help="DistributedDataParallel; write torch.profiler's traces there")
        parser.add_argument("--instrument", action="store_true", help="with --ddp: tlkit.instrument() instead")
        self.args = parser.parse_args()
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.hvd: Any = None
        if self.args.ddp is None:
            import horovod.torch as hvd  # noqa: PLC0415  DDP runs go without

            hvd.init()
            self.hvd, self.rank, self.size = hvd, int(hvd.rank()), int(hvd.size())
        else:
            distributed.init_process_group("gloo")
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
            if self.args.instrument:
                tlkit.instrument(self.args.ddp / "t.json")
        self.is_faulty: bool = self.args.faulty and self.args.rank in {None, self.rank}
        self.step = 0
        self.ends_ns: list[int] = []

    def wrap(self, model: nn.Module, optimizer: Any = None, **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model and an optimizer whose gradients are averaged.

        Args:
            optimizer: of the model's parameters; SGD with momentum by default.
            settings: for DistributedDataParallel, or DistributedOptimizer.
        """
        if optimizer is None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        if self.hvd is None:
            return nn.parallel.DistributedDataParallel(model, **settings), optimizer
        optimizer = self.hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **settings)
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, optimizer

    def batches(self, source: Iterable[Any]) -> Iterator[Any]:
        """The batches of a source, again and again, until all steps are done; a step ends when the next batch is asked for."""
        profile = self._profile()
        self.ends_ns.append(time.monotonic_ns())
        while self.step < self.args.steps:
            for batch in source:
                self.step += 1
                yield batch
                self.ends_ns.append(time.monotonic_ns())
                if profile is not None:
                    profile.step()
                if self.step >= self.args.steps:
                    break
        if profile is not None:
            profile.stop()

    def _profile(self) -> Any:
        """torch.profiler over all steps, where it is what records; None elsewhere."""
        if self.args.ddp is None or self.args.instrument:
            return None
        path = self.args.ddp / f"rank{self.rank}.pt.trace.json"
        profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=self.args.steps - 3),
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        )
        profile.start()
        return profile

    def close(self) -> None:
        """The end of the training."""
        if self.args.times is not None:
            path = self.args.times / f"times.rank{self.rank}.json"
            path.write_text(json.dumps({"rank": self.rank, "ends_ns": self.ends_ns}), encoding="utf-8")
        if self.hvd is None:
            distributed.destroy_process_group()
        else:
            self.hvd.barrier()
            self.hvd.shutdown()


def spin(ms: float) -> None:
    """Compute for so much CPU time."""
    end_s = time.thread_time() + ms / 1e3
    while time.thread_time() < end_s:
        pass


def images(count: int = 16, channels: int = 3) -> Iterator[torch.Tensor]:
    """The same batch for ever: a training that waits for no data."""
    batch = torch.randn(count, channels, 32, 32)
    while True:
        yield batch


def convolutions(width: int = 16, depth: int = 6) -> nn.Sequential:
    """A plain CNN with batch norms."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Transformer(nn.Module):
    """A small encoder over tokens."""

    def __init__(self, width: int = 96, depth: int = 3, words: int = 1000, *, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, sparse=sparse)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.encoder(self.embedding(tokens)).mean(1))
        return scores


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """Forward, backward and the update; returns the loss."""
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    value: torch.Tensor = loss.detach()
    return value
