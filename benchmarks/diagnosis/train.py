"""A small training that can be made slow in many ways, with our runtime or with DDP and torch.profiler.

    HOROVOD_TIMELINE=t.json tl-run -np 2 python benchmarks/diagnosis/train.py --fault slow-forward:rank=1,ms=50
    torchrun --nproc-per-node 2 benchmarks/diagnosis/train.py --ddp traces --fault slow-dataset:ms=60
    torchrun --nproc-per-node 2 benchmarks/diagnosis/train.py --ddp traces --instrument --fault slow-dataset:ms=60

Faults are written `name:option=value,…`; several are joined with `+`.  Options: rank (default: all), ms (default 50).
"""

import argparse
import contextlib
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import tlkit

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))

from cnn import Images, Network

FAULTS = {
    "slow-dataset": "reading samples takes longer (ms a batch)",
    "slow-transform": "a transform computes for ms a batch",
    "slow-collate": "collate_fn takes longer",
    "short-epochs": "workers start anew every five steps",
    "slow-forward": "sleep in forward",
    "busy-forward": "forward computes longer",
    "periodic-forward": "every fifth forward sleeps",
    "slow-backward": "sleep in backward",
    "slow-optimizer": "sleep in the optimizer step",
    "heavy-optimizer": "the optimizer step moves 256 MB through memory",
    "slow-host": "sleep in the loop",
    "item": "loss.item() in every step",
    "checkpoint": "rank 0 writes to slow storage every tenth step",
    "evaluation": "all ranks stop for ms every tenth step",
    "garbage": "gc.collect() every fourth step, with two million objects to look through",
    "slowing-down": "every step sleeps 1 ms longer than the one before",
    "hog": "another process on the core of the rank",
    "big-batches": "three times as large batches",
    "uneven-batches": "batch sizes that differ from rank to rank and step to step",
    "huge-tensor": "a layer of 36 MB near the output",
    "late-layer": "a layer of 36 MB at the input, whose gradient comes last",
}


class Faults:
    """What is made wrong on this rank."""

    def __init__(self, text: str, rank: int) -> None:
        self.ms: dict[str, float] = {}
        self.steps = 0
        for part in text.split("+"):
            name, _, rest = part.partition(":")
            if name == "none":
                continue
            if name not in FAULTS:
                raise SystemExit(f"{name}: choose one of {', '.join(FAULTS)}")
            options = dict(option.split("=", 1) for option in rest.split(",") if option)
            if int(options.get("rank", rank)) == rank:
                self.ms[name] = float(options.get("ms", 50))

    def has(self, name: str) -> bool:
        return name in self.ms

    def sleep(self, name: str, share: float = 1.0) -> None:
        if name in self.ms:
            time.sleep(share * self.ms[name] / 1e3)

    def spin(self, name: str, share: float = 1.0) -> None:
        if name in self.ms:
            # CPU time, so that a busy machine does not shorten the work.
            end = time.thread_time() + share * self.ms[name] / 1e3
            while time.thread_time() < end:
                pass


class FaultyImages(Images):
    """Images that take their time."""

    def __init__(self, count: int, batch_size: int, faults: Faults) -> None:
        super().__init__(count)
        self.batch_size, self.faults = batch_size, faults

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.faults.sleep("slow-dataset", 1 / self.batch_size)
        self.faults.spin("slow-transform", 1 / self.batch_size)
        return super().__getitem__(index)


class Collate:
    """The usual collation, slowed down on demand."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def __call__(self, samples: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
        self.faults.sleep("slow-collate")
        batch: list[torch.Tensor] = torch.utils.data.default_collate(samples)
        return batch


class FaultyNetwork(Network):
    """The samples' network, slowed down, and with a huge layer on demand."""

    def __init__(self, channels: int, faults: Faults, huge: str) -> None:
        super().__init__(channels)
        self.faults, self.passes, self.where = faults, 0, huge
        self.huge = nn.Linear(3000, 3000, bias=False) if huge else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.faults.sleep("slow-forward")
        self.faults.spin("busy-forward")
        self.passes += 1
        if self.passes % 5 == 0:
            self.faults.sleep("periodic-forward")
        if self.huge is not None and self.where == "late-layer":
            x = x + 1e-6 * self.huge(x.flatten(1)[:, :3000]).mean()
        scores = super().forward(x)
        if self.faults.has("slow-backward"):
            scores.register_hook(lambda _: self.faults.sleep("slow-backward"))
        if self.huge is not None and self.where == "huge-tensor":
            scores = scores + 1e-6 * self.huge(torch.ones(3000)).mean()
        return scores


class SlowFile:
    """Takes bytes, the first of them slowly."""

    def __init__(self, faults: Faults) -> None:
        self.faults: Faults | None = faults

    def write(self, data: bytes) -> int:
        if self.faults is not None:
            self.faults.sleep("checkpoint")
        self.faults = None
        return len(data)

    def flush(self) -> None:
        pass


class HeavyStep:
    """What a careless optimizer does: it moves far more memory than the parameters have."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.state = torch.zeros(32 * 1024 * 1024) if faults.has("heavy-optimizer") else None

    def __call__(self, *_: Any) -> None:
        self.faults.sleep("slow-optimizer")
        if self.state is not None:
            self.state.mul_(0.999).add_(1e-3)


class Sizes:
    """How many samples each step takes: the same, three times as many, or by chance."""

    def __init__(self, batch_size: int, faults: Faults, rank: int, steps: int, seed: int = 7) -> None:
        chance = torch.Generator().manual_seed(seed + rank)
        sizes = torch.full((steps,), batch_size)
        if faults.has("big-batches"):
            sizes *= 3
        if faults.has("uneven-batches"):
            sizes = torch.randint(batch_size // 4, 2 * batch_size, (steps,), generator=chance)
        self.sizes = [int(size) for size in sizes]

    def __iter__(self) -> Iterator[list[int]]:
        first = 0
        for size in self.sizes:
            yield list(range(first, first + size))
            first += size

    def __len__(self) -> int:
        return len(self.sizes)


def setup_hvd(model: nn.Module, faults: Faults) -> tuple[nn.Module, Any]:
    """Horovod's four lines."""
    import horovod.torch as hvd  # noqa: PLC0415  DDP runs go without

    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    optimizer.register_step_pre_hook(HeavyStep(faults))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return model, optimizer


def setup_ddp(model: nn.Module, faults: Faults) -> tuple[nn.Module, Any]:
    """DistributedDataParallel on Gloo."""
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.02, momentum=0.9)
    optimizer.register_step_pre_hook(HeavyStep(faults))
    return wrapped, optimizer


@contextlib.contextmanager
def profiled(folder: str, rank: int, steps: int) -> Iterator[Any]:
    """torch.profiler over all steps; one file a rank."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=steps - 3)
    path = str(Path(folder) / f"rank{rank}.pt.trace.json")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda profile: profile.export_chrome_trace(path),
    ) as profile:
        yield profile


def loader_of(args: argparse.Namespace, faults: Faults, rank: int, size: int) -> DataLoader[Any]:
    """One epoch, or short ones."""
    steps = 5 if args.short_epochs else args.steps
    sizes = Sizes(args.batch_size, faults, rank, steps)
    dataset = FaultyImages(sum(sizes.sizes) * size, args.batch_size, faults)
    collate = Collate(faults)
    if faults.has("big-batches") or faults.has("uneven-batches"):
        return DataLoader(dataset, batch_sampler=sizes, num_workers=args.workers, collate_fn=collate)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=size, rank=rank, shuffle=False)
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        collate_fn=collate,
        persistent_workers=bool(args.workers) and args.persistent,
    )


def train(args: argparse.Namespace, rank: int, size: int) -> None:
    """The loop."""
    faults = Faults(args.fault, rank)
    wanted = {part.partition(":")[0] for part in args.fault.split("+")}
    args.short_epochs = args.workers and ("short-epochs" in wanted or args.persistent)
    if args.pin:
        os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    torch.set_num_threads(1)
    torch.manual_seed(42)
    huge = next((name for name in ("huge-tensor", "late-layer") if name in wanted), "")
    model: nn.Module = FaultyNetwork(args.channels, faults, huge)
    model, optimizer = (setup_ddp if args.ddp else setup_hvd)(model, faults)
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if faults.has("hog") else None
    rubbish = [[number] for number in range(2_000_000)] if faults.has("garbage") else []
    loader = loader_of(args, faults, rank, size)
    number = 0
    try:
        is_profiled = args.ddp and not args.instrument
        with profiled(args.ddp, rank, args.steps) if is_profiled else contextlib.nullcontext() as profile:
            while number < args.steps:
                for images, labels in loader:
                    if number >= args.steps:
                        break
                    number += 1
                    step(model, optimizer, images, labels, faults, number)
                    if profile is not None:
                        profile.step()
    finally:
        if hog is not None:
            hog.kill()
            hog.wait()
        del rubbish


def step(
    model: nn.Module,
    optimizer: Any,
    images: torch.Tensor,
    labels: torch.Tensor,
    faults: Faults,
    number: int,
) -> None:
    """One iteration, with whatever is wrong in the loop."""
    if number % 10 == 0:
        faults.sleep("evaluation")
        if faults.has("checkpoint"):
            torch.save(model.state_dict(), SlowFile(faults))
    faults.sleep("slow-host")
    if faults.has("slowing-down"):
        time.sleep(number / 1e3)
    if faults.has("garbage") and number % 4 == 0:
        gc.collect()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    if faults.has("item"):
        loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--channels", type=int, default=24)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true", help="epochs of five steps, with workers that stay")
    parser.add_argument("--pin", action="store_true", help="bind every rank to one core")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--ddp", metavar="FOLDER", help="use DDP and write torch.profiler's traces there")
    parser.add_argument("--instrument", action="store_true", help="with --ddp: tlkit.instrument() instead")
    args = parser.parse_args()
    if args.ddp:
        torch.distributed.init_process_group("gloo")
        if args.instrument:
            tlkit.instrument(Path(args.ddp) / "t.json")
        train(args, torch.distributed.get_rank(), torch.distributed.get_world_size())
        torch.distributed.destroy_process_group()
        return
    import horovod.torch as hvd  # noqa: PLC0415  DDP runs go without

    hvd.init()
    train(args, hvd.rank(), hvd.size())
    hvd.shutdown()


if __name__ == "__main__":
    main()
