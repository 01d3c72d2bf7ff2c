"""A network that is split over ranks, and each part replicated: process sets of both kinds.

    tl-run -np 4 python samples/model_parallel.py
    tl-run -np 4 python samples/model_parallel.py --sets static
    tl-run -np 4 --mpi python samples/model_parallel.py --sets mpi

Ranks 0 and 1 hold one half each of the hidden layer, and so do ranks 2 and 3, of the same network on other data.  A pair adds up
its halves' outputs in the forward pass; ranks that hold the same half average their gradients.  At the end rank 0 compares the
result with the undivided network, trained alone on all data.  The sets of ranks are added while the job runs
(`dynamic`), named before it begins (`static`), or are MPI communicators (`mpi`).
"""

import argparse
import os
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

INPUTS, HIDDEN, CLASSES = 64, 256, 10


class Half(nn.Module):
    """Half of the hidden units, and what they contribute to the output."""

    def __init__(self, whole: "Whole", part: int, pair: hvd.ProcessSet) -> None:
        super().__init__()
        units = slice(part * HIDDEN // 2, (part + 1) * HIDDEN // 2)
        self.inner = nn.Linear(INPUTS, HIDDEN // 2)
        self.outer = nn.Linear(HIDDEN // 2, CLASSES, bias=False)
        with torch.no_grad():
            self.inner.weight.copy_(whole.inner.weight[units])
            self.inner.bias.copy_(whole.inner.bias[units])
            self.outer.weight.copy_(whole.outer.weight[:, units])
        self.pair = pair

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share: torch.Tensor = self.outer(torch.relu(self.inner(x)))
        scores: torch.Tensor = hvd.allreduce(share, name="scores", op=hvd.Sum, process_set=self.pair)
        return scores


class Whole(nn.Module):
    """The same network in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(INPUTS, HIDDEN)
        self.outer = nn.Linear(HIDDEN, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.outer(torch.relu(self.inner(x)))
        return scores


def batch(step: int, replica: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up data, the same for both halves of a replica."""
    generator = torch.Generator().manual_seed(1000 * step + replica)
    images = torch.randn(size, INPUTS, generator=generator)
    return images, images[:, :CLASSES].argmax(1)


def dynamic_sets() -> tuple[Any, Any]:
    """This rank's pair, and the ranks with its half.  All ranks add all sets in the same order, whoever is in them."""
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    firsts = range(0, size, 2)
    # Two ranks are one pair, which is everybody.
    pairs = [hvd.add_process_set([first, first + 1]) for first in firsts] if size > 2 else [hvd.global_process_set]
    same_half = [hvd.add_process_set(list(range(part, size, 2))) for part in range(2)]
    return pairs[rank // 2], same_half[rank % 2]


def static_sets() -> tuple[Any, Any]:
    """The same, named before the ranks have met: the launcher says how many there are."""
    size = int(os.environ["HOROVOD_SIZE"])
    pairs = [hvd.ProcessSet([first, first + 1]) for first in range(0, size, 2)] if size > 2 else []
    same_half = [hvd.ProcessSet(list(range(part, size, 2))) for part in range(2)]
    hvd.init(process_sets=[*pairs, *same_half])
    rank = hvd.rank()
    return pairs[rank // 2] if pairs else hvd.global_process_set, same_half[rank % 2]


def mpi_sets() -> tuple[Any, Any]:
    """The same, out of the world by MPI's own means."""
    from mpi4py import MPI  # noqa: PLC0415  only here

    world = MPI.COMM_WORLD
    pairs = [hvd.ProcessSet(world.Split(world.rank // 2))] if world.size > 2 else []
    same_half = hvd.ProcessSet(world.Split(world.rank % 2))
    hvd.init(world, process_sets=[*pairs, same_half])
    return pairs[0] if pairs else hvd.global_process_set, same_half


SETS = {"dynamic": dynamic_sets, "static": static_sets, "mpi": mpi_sets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--sets", choices=list(SETS), default="dynamic")
    args = parser.parse_args()

    pair, same_half = SETS[args.sets]()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank, size = hvd.rank(), hvd.size()
    if size % 2:
        raise SystemExit("a network of two halves takes an even number of ranks")
    part, replica, replicas = rank % 2, rank // 2, size // 2
    whole = Whole()
    model = Half(whole, part, pair)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=same_half)
    alone = torch.optim.SGD(whole.parameters(), lr=0.2)
    loss = torch.zeros(())
    for step in range(args.steps):
        images, labels = batch(step, replica, args.batch_size)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        # The gradient of a sum over two ranks is the sum of both ranks' gradients, and both have the whole loss.
        (loss / 2).backward()
        optimizer.step()

        alone.zero_grad()
        everything = [batch(step, number, args.batch_size) for number in range(replicas)]
        functional.cross_entropy(
            whole(torch.cat([images for images, _ in everything])), torch.cat([labels for _, labels in everything])
        ).backward()
        alone.step()
    units = slice(part * HIDDEN // 2, (part + 1) * HIDDEN // 2)
    difference = (model.inner.weight - whole.inner.weight[units]).abs().max()
    worst = hvd.allreduce(difference, name="difference", op=hvd.Max)
    mean = hvd.allreduce(loss.detach(), name="loss")
    if rank == 0:
        print(f"{args.steps} steps on {size} ranks, last loss {mean.item():.4f}")
        print(f"largest difference from the undivided network: {worst.item():.1e}")


if __name__ == "__main__":
    main()
