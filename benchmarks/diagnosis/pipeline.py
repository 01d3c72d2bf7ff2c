"""A pipeline of two stages on two ranks, with micro-batches sent and received one by one.

torchrun --nproc-per-node 2 benchmarks/diagnosis/pipeline.py --ddp traces --instrument --blocks 3/9
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional

import tlkit

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))

from cnn import Block

CHANNELS, PIXELS = 16, 16


class FirstStage(nn.Module):
    """From the images on."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Block(CHANNELS) for _ in range(blocks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.blocks(self.stem(x))
        return y


class LastStage(nn.Module):
    """To the scores."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(CHANNELS) for _ in range(blocks)))
        self.head = nn.Linear(CHANNELS, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.blocks(x).mean((2, 3)))
        return scores


def first_step(stage: nn.Module, optimizer: torch.optim.Optimizer, images: list[torch.Tensor]) -> None:
    """All forward passes, then all backward passes: GPipe's order."""
    optimizer.zero_grad()
    outputs: list[torch.Tensor] = []
    for image in images:
        outputs.append(stage(image))
        distributed.send(outputs[-1].detach(), dst=1)
    for output in outputs:
        gradient = torch.empty_like(output)
        distributed.recv(gradient, src=1)
        output.backward(gradient)
    optimizer.step()


def last_step(stage: nn.Module, optimizer: torch.optim.Optimizer, labels: list[torch.Tensor]) -> None:
    """The same order on the other side."""
    optimizer.zero_grad()
    inputs, losses = [], []
    for label in labels:
        received = torch.empty(len(label), CHANNELS, PIXELS, PIXELS)
        distributed.recv(received, src=0)
        inputs.append(received.requires_grad_())
        losses.append(functional.cross_entropy(stage(received), label))
    for received, loss in zip(inputs, losses, strict=True):
        loss.backward()
        assert received.grad is not None
        distributed.send(received.grad, dst=0)
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--blocks", default="6/6", help="blocks of each stage (default 6/6)")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8, help="of a micro-batch")
    parser.add_argument("--times", metavar="FOLDER", help="write there when each step ended")
    parser.add_argument("--ddp", metavar="FOLDER", required=True, help="where the timeline is written")
    parser.add_argument("--instrument", action="store_true", required=True)
    args = parser.parse_args()
    distributed.init_process_group("gloo")
    tlkit.instrument(Path(args.ddp) / "t.json")
    torch.set_num_threads(1)
    torch.manual_seed(42)
    rank = distributed.get_rank()
    blocks = int(args.blocks.split("/")[rank])
    stage: nn.Module = LastStage(blocks) if rank else FirstStage(blocks)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.02, momentum=0.9)
    ends_ns = [time.monotonic_ns()]
    for _ in range(args.steps):
        if rank:
            last_step(stage, optimizer, list(torch.zeros(args.micro_batches, args.batch_size, dtype=torch.long)))
        else:
            images = torch.randn(args.micro_batches, args.batch_size, 3, 2 * PIXELS, 2 * PIXELS)
            first_step(stage, optimizer, list(images))
        ends_ns.append(time.monotonic_ns())
    if args.times:
        path = Path(args.times) / f"times.rank{rank}.json"
        path.write_text(json.dumps({"rank": rank, "ends_ns": ends_ns}), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
