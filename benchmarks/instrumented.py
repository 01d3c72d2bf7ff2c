"""What `tlkit.instrument()` costs a DDP training: blocks of steps with and without, in turn, in one job.

    python benchmarks/instrumented.py

Two ranks on Gloo; the ratio of each block to the one after it, median and quartiles.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCKS, STEPS, LEFT_OUT = 40, 15, 3


def rank_main(folder: str) -> None:
    """One rank; rank 0 prints."""
    import torch  # noqa: PLC0415  only the ranks need it
    import torch.distributed as dist  # noqa: PLC0415

    import tlkit  # noqa: PLC0415

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    path = Path(folder) / "t.json"
    recording = tlkit.instrument(path)
    layers = [torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(2048, 1024))
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(64, 1024)
    medians = []
    for block in range(BLOCKS):
        if block % 2:
            recording.stop()
        elif block:
            recording = tlkit.instrument(path)
        taken = []
        for _ in range(STEPS):
            began = time.perf_counter()
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
            taken.append(time.perf_counter() - began)
        medians.append(statistics.median(taken[LEFT_OUT:]))
    if dist.get_rank() == 0:
        ratios = [on / off for on, off in zip(medians[2::2], medians[3::2], strict=True)]
        low, middle, high = statistics.quantiles(ratios)
        off_ms = 1e3 * statistics.median(medians[3::2])
        print("| DDP on Gloo, 33.6 MB | off, ms | on/off |\n| --- | --- | --- |")
        print(f"| two ranks | {off_ms:.1f} | {middle:.3f} ({low:.3f} to {high:.3f}) |")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    folder = parser.parse_args().folder
    if folder:
        rank_main(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*torchrun, __file__, "--folder", scratch], env=environment, check=True)


if __name__ == "__main__":
    main()
