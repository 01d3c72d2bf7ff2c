"""An ordinary Horovod script: a small residual CNN on made-up images.

    HOROVOD_TIMELINE=t.json tl-run -np 2 python samples/train_cnn.py

Nothing in it knows of the toolkit.  `--fault` slows it down on purpose (see faults.py).
"""

import argparse

import horovod.torch as hvd
import torch
from faults import Fault, parse_fault
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Made-up images of ten classes, each made when it is asked for."""

    def __init__(self, count: int, batch_size: int, fault: Fault, rank: int) -> None:
        self.count, self.batch_size, self.fault, self.rank = count, batch_size, fault, rank

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.fault.strike("slow-dataset", self.rank, share=1 / self.batch_size)
        label = index % 10
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator) + 0.1 * label, label


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.second, self.second_norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(x + self.second_norm(self.second(y)))


class Network(nn.Module):
    """Seven blocks, 60 parameter tensors."""

    def __init__(self, channels: int, fault: Fault, rank: int) -> None:
        super().__init__()
        self.fault, self.rank, self.passes = fault, rank, 0
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(7)))
        self.head = nn.Linear(channels, 10)
        self.huge = nn.Linear(3000, 3000, bias=False) if fault.name == "huge-tensor" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fault.strike("slow-forward", self.rank)
        self.passes += 1
        if self.passes % 5 == 0:
            self.fault.strike("periodic-forward", self.rank)
        scores: torch.Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        if scores.requires_grad and self.fault.name == "slow-backward":
            scores.register_hook(lambda _: self.fault.strike("slow-backward", self.rank))
        if self.huge is not None:
            scores = scores + 1e-6 * self.huge(torch.ones(3000)).mean()
        return scores


class Collate:
    """The usual collation, slowed down on demand."""

    def __init__(self, fault: Fault, rank: int) -> None:
        self.fault, self.rank = fault, rank

    def __call__(self, samples: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
        self.fault.strike("slow-collate", self.rank)
        batch: list[torch.Tensor] = torch.utils.data.default_collate(samples)
        return batch


class SlowFile:
    """Takes bytes, slowly."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def write(self, data: bytes) -> int:
        self.fault.strike("checkpoint", 0)
        self.fault = Fault()
        return len(data)

    def flush(self) -> None:
        pass


def save(model: nn.Module, fault: Fault) -> None:
    """Write a checkpoint to storage that is slow once."""
    torch.save(model.state_dict(), SlowFile(fault))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--channels", type=int, default=24)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--fault", type=parse_fault, default=Fault())
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    dataset = Images(args.steps * args.batch_size * hvd.size(), args.batch_size, args.fault, hvd.rank())
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(
        dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        collate_fn=Collate(args.fault, hvd.rank()),
    )
    model = Network(args.channels, args.fault, hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    optimizer.register_step_pre_hook(lambda *_: args.fault.strike("slow-optimizer", hvd.rank()))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    loss = torch.zeros(())
    for number, (images, labels) in enumerate(loader):
        if args.fault.name == "checkpoint" and number % 10 == 9 and hvd.rank() == 0:
            save(model, args.fault)
        optimizer.zero_grad()
        args.fault.strike("slow-host", hvd.rank())
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        print(f"{args.steps} steps on {hvd.size()} ranks, last loss {mean.item():.4f}")


if __name__ == "__main__":
    main()
