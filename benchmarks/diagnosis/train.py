"""A small training that can be made slow in many ways, with our runtime or with DDP and torch.profiler.

    HOROVOD_TIMELINE=t.json tl-run -np 2 python benchmarks/diagnosis/train.py --fault slow-forward:rank=1,ms=50
    torchrun --nproc-per-node 2 benchmarks/diagnosis/train.py --ddp traces --fault slow-dataset:ms=60
    torchrun --nproc-per-node 2 benchmarks/diagnosis/train.py --ddp traces --instrument --fault slow-dataset:ms=60

Faults are written `name:option=value,…`; several are joined with `+`.  faults.py has all names and options.
"""

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from faults import Faults, start_threads
from libraries import Ddp, Horovod, Library
from torch import nn
from torch.nn import functional

import tlkit

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))

from parts import FaultyNetwork, HeavyStep, SlowFile, make_loader


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


class Training:
    """The loop, with whatever is wrong in it.

    `ends_ns` holds when each step ended, by the monotonic clock; its first entry is the begin of the first step.
    """

    def __init__(self, args: argparse.Namespace, library: Library) -> None:
        self.args, self.library = args, library
        self.faults = Faults(args.fault, library.rank)
        model: nn.Module = FaultyNetwork(args.channels, self.faults)
        self.model, self.optimizer = library.wrap(model, pairs=args.pairs)
        self.optimizer.register_step_pre_hook(HeavyStep(self.faults))
        self.rubbish = [[number] for number in range(2_000_000)] if self.faults.has("garbage") else []
        self.ends_ns: list[int] = []

    def run(self) -> None:
        """All steps."""
        args, faults = self.args, self.faults
        epoch = 5 if args.workers and ("short-epochs" in faults.names or args.persistent) else args.epoch or args.steps
        loader = make_loader(
            faults,
            self.library.rank,
            self.library.size,
            steps=epoch,
            batch_size=args.batch_size,
            workers=args.workers,
            persistent=args.persistent,
        )
        is_profiled = args.ddp and not args.instrument
        start_threads(faults)
        self.ends_ns.append(time.monotonic_ns())
        with profiled(args.ddp, self.library.rank, args.steps) if is_profiled else contextlib.nullcontext() as profile:
            while faults.step < args.steps:
                for images, labels in loader:
                    if faults.step >= args.steps:
                        break
                    faults.step += 1
                    self.pause(images)
                    self.step(images, labels)
                    self.ends_ns.append(time.monotonic_ns())
                    if profile is not None:
                        profile.step()

    def pause(self, images: torch.Tensor) -> None:
        """What a loop does besides training."""
        faults = self.faults
        if batches := faults.count("validation"):
            # Not through DDP, whose ranks would have to do the same.
            model: nn.Module = getattr(self.model, "module", self.model)
            model.eval()
            with torch.no_grad():
                for _ in range(batches):
                    model(images)
            model.train()
        if faults.ms("checkpoint"):
            torch.save(self.model.state_dict(), SlowFile(faults))  # type: ignore[arg-type]  # all that torch writes with
        faults.sleep("slow-host")
        faults.spin("busy-host")
        if faults.count("garbage"):
            gc.collect()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One iteration."""
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        if self.faults.has("item"):
            loss.item()
        for number in range(self.faults.count("metrics")):
            self.library.average(torch.tensor(float(number)), f"metric.{number}")
        for _ in range(self.faults.count("broadcast-object")):
            self.library.broadcast_object({"step": self.faults.step, "rate": 0.01})
        for _ in range(self.faults.count("allgather-object")):
            self.library.allgather_object({"rank": self.library.rank, "scores": [0.1] * 20})
        for _ in range(self.faults.count("barrier")):
            self.library.barrier()

    def save_times(self, folder: str) -> None:
        """What the steps took, measured without the recorder."""
        path = Path(folder) / f"times.rank{self.library.rank}.json"
        path.write_text(json.dumps({"rank": self.library.rank, "ends_ns": self.ends_ns}), encoding="utf-8")


def train(args: argparse.Namespace, library: Library) -> None:
    """One rank, and what runs beside it."""
    if args.pin:
        os.sched_setaffinity(0, {library.rank % (os.cpu_count() or 1)})
    torch.set_num_threads(1)
    torch.manual_seed(42)
    training = Training(args, library)
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if training.faults.has("hog") else None
    try:
        training.run()
    finally:
        if hog is not None:
            hog.kill()
            hog.wait()
    if args.times:
        training.save_times(args.times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--channels", type=int, default=24)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epoch", type=int, default=0, help="steps of an epoch (default: one epoch)")
    parser.add_argument("--persistent", action="store_true", help="epochs of five steps, with workers that stay")
    parser.add_argument("--pairs", action="store_true", help="average gradients over two ranks each")
    parser.add_argument("--pin", action="store_true", help="bind every rank to one core")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--times", metavar="FOLDER", help="write there when each step ended")
    parser.add_argument("--ddp", metavar="FOLDER", help="use DDP and write torch.profiler's traces there")
    parser.add_argument("--instrument", action="store_true", help="with --ddp: tlkit.instrument() instead")
    args = parser.parse_args()
    library: Library
    if args.ddp:
        torch.distributed.init_process_group("gloo")
        if args.instrument:
            tlkit.instrument(Path(args.ddp) / "t.json")
        library = Ddp()
    else:
        library = Horovod(pairs=args.pairs)
    train(args, library)
    library.close()


if __name__ == "__main__":
    main()
