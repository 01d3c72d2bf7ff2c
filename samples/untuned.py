"""A Horovod script that is slower than it needs to be, for tl-tune to try its settings on.

    tl-tune -np 2 --minutes 5 python samples/untuned.py --read-ms 40

What is wrong with it is chosen by arguments: `--read-ms` makes reading a batch slow (as a disk or a network does), `--threads`
takes more threads than there are cores, or fewer, `--workers` with `--epoch-steps` starts loader workers anew all the time,
`--optimizer adamw` updates one parameter after the other, HOROVOD_FUSION_THRESHOLD=0 sends every gradient by itself, and
`--wide` adds a layer whose gradients are large, for HOROVOD_CPU_OPERATIONS=gloo to send through sockets.
"""

import argparse
import time

import horovod.torch as hvd
import torch
from cnn import Images, Network
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class SlowImages(Images):
    """Images that are waited for."""

    def __init__(self, count: int, seconds: float) -> None:
        super().__init__(count)
        self.seconds = seconds

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.seconds)
        return super().__getitem__(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--epoch-steps", type=int, default=0, help="steps of an epoch (default: one epoch)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--wide", type=int, default=0, help="units of a layer before the scores (default: without)")
    parser.add_argument("--read-ms", type=float, default=0.0, help="what it takes to read a batch")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--threads", type=int, default=0, help="default: what the launcher says")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--fused", action="store_true", help="update all parameters in one pass")
    args = parser.parse_args()

    hvd.init()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(42)
    epoch = args.epoch_steps or args.steps
    dataset = SlowImages(epoch * args.batch_size * hvd.size(), args.read_ms / 1e3 / args.batch_size)
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(
        dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.persistent and args.workers > 0,
    )
    model = Network(args.channels)
    if args.wide:
        model.head = nn.Sequential(nn.Linear(args.channels, args.wide), nn.ReLU(), nn.Linear(args.wide, 10))
    optimizer: torch.optim.Optimizer
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=args.fused)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9, fused=args.fused)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    step, loss = 0, torch.zeros(())
    while step < args.steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
    mean = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        print(f"{step} steps on {hvd.size()} ranks, last loss {mean.item():.4f}")


if __name__ == "__main__":
    main()
