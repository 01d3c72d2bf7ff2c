"""What `tlkit.instrument()` costs a training of torch's own: blocks of steps with and without, in turn, in one job.

    python benchmarks/instrumented.py                    # DistributedDataParallel, and fully_shard
    python benchmarks/instrumented.py --model fsdp --settled --blocks 80

Two ranks on Gloo.  The ratio of each block to the one after it, median and quartiles of wall time, median of processor time (all
threads of rank 0) with the interval that holds the true value 95 times of 100.  What is added for each collective tells more:
most of a step is computation, and differs by more than that.  `--settled` looks at the code as seldom as a recording does after
a quarter of a minute.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from recording import interval, median_added_us, median_ratio

MODELS = ("ddp", "fsdp")
STEPS, LEFT_OUT = 15, 3


def build(name: str) -> Any:
    """A model of 33.6 MB over all ranks."""
    import torch  # noqa: PLC0415  only the ranks need it

    torch.manual_seed(0)
    layers = [torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(2048, 1024))
    if name == "ddp":
        return torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    mesh = init_device_mesh("cpu", (2,))
    for layer in list(net)[::2]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def collectives_a_step(path: Path) -> float:
    """How many collectives the last block had recorded, a step."""
    return path.read_text().count('"cat":"collective"') / STEPS


def rank_main(name: str, blocks: int, folder: str, *, is_settled: bool) -> None:
    """One rank; rank 0 prints."""
    import torch  # noqa: PLC0415  only the ranks need it
    import torch.distributed as dist  # noqa: PLC0415

    import tlkit  # noqa: PLC0415
    from tlkit.runtime.instrument.code import ticker  # noqa: PLC0415

    if is_settled:
        ticker.OFTEN_COUNT = 0  # type: ignore[misc]  # of every recording, not only after a while
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    path = Path(folder) / "t.json"
    recording = tlkit.instrument(path)
    model = build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(64, 1024)
    taken = []
    for block in range(blocks):
        if block % 2:
            recording.stop()
        elif block:
            recording = tlkit.instrument(path)
        walls = []
        cpu = 0.0
        for step in range(STEPS):
            if step == LEFT_OUT:
                cpu = time.process_time()
            began = time.perf_counter()
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
            walls.append(time.perf_counter() - began)
        taken.append((statistics.median(walls[LEFT_OUT:]), (time.process_time() - cpu) / (STEPS - LEFT_OUT)))
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps({"taken": taken, "collectives": collectives_a_step(path)}), flush=True)
    dist.destroy_process_group()


def measure(name: str, blocks: int, *, is_settled: bool) -> None:
    """Run the job for one model and print its row."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        arguments = ["--model", name, "--blocks", str(blocks), "--folder", folder]
        done = subprocess.run(
            [*torchrun, __file__, *arguments, *(["--settled"] if is_settled else [])],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    line = next(line for line in done.stdout.splitlines() if "RESULT " in line)
    result = json.loads(line.partition("RESULT ")[2])
    on, off = result["taken"][2::2], result["taken"][3::2]
    low, middle, high = statistics.quantiles(with_it[0] / without[0] for with_it, without in zip(on, off, strict=True))
    cpu = [(without[1], with_it[1]) for with_it, without in zip(on, off, strict=True)]
    ratios, added = interval(cpu, median_ratio), interval(cpu, median_added_us)
    pairs = [with_it[1] / without[1] for with_it, without in zip(on, off, strict=True)]
    added_us = 1e6 * statistics.median(with_it[1] - without[1] for with_it, without in zip(on, off, strict=True))
    count = result["collectives"]
    wall = f"{1e3 * statistics.median(each[0] for each in off):.1f} | {middle:.3f} ({low:.3f} to {high:.3f})"
    processor = f"{statistics.median(pairs):.3f} ({ratios[0]:.3f} to {ratios[1]:.3f})"
    each = f"{added_us:.0f} ({added[0]:.0f} to {added[1]:.0f}) | {count:.1f} | {added_us / count:.0f}"
    print(f"| {name} | {wall} | {processor} | {each} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--blocks", type=int, default=40, help="blocks of steps, with and without (default 40)")
    parser.add_argument("--settled", action="store_true", help="look at the code as seldom as after a while")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        rank_main(arguments.model, arguments.blocks, arguments.folder, is_settled=arguments.settled)
        return
    print("| two ranks on Gloo | off, ms | wall on/off | CPU on/off | CPU added a step, us | collectives | us each |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in [arguments.model] if arguments.model else MODELS:
        measure(name, arguments.blocks, is_settled=arguments.settled)


if __name__ == "__main__":
    main()
