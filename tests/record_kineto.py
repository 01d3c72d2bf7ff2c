"""Records tests/traces/kineto: two ranks of DDP on processors under torch.profiler.

    torchrun --nproc-per-node 2 --standalone tests/record_kineto.py

Each rank writes rank<r>.json.gz.
"""

import gzip
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(__file__).resolve().parent / "traces" / "kineto"
STEPS = 8


def main() -> None:
    """Train a few steps, of which all but the first two are in the trace."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(64 * STEPS, 256), torch.randint(10, (64 * STEPS,))), batch_size=64)

    def write(profiler: profile) -> None:
        FOLDER.mkdir(exist_ok=True)
        os.chdir(FOLDER)  # the trace contains the path that it was written to
        plain = Path(f"rank{dist.get_rank()}.json")
        profiler.export_chrome_trace(str(plain))
        with gzip.GzipFile(f"{plain}.gz", "wb", mtime=0) as packed:
            packed.write(plain.read_bytes())
        plain.unlink()

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS - 2),
        on_trace_ready=write,
        record_shapes=True,
    ) as profiler:
        for values, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(values), labels).backward()
            optimizer.step()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
