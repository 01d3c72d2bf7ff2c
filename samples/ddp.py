"""The same training with DistributedDataParallel, or sharded with FSDP; one line records it.

    HOROVOD_TIMELINE=t.json torchrun --nproc-per-node 2 samples/ddp.py
    tl-analyze t.json

`--fsdp` shards parameters instead of replicating them.  `--profile` puts what torch.profiler sees of six steps into the timeline:
tl-analyze t.json t.profile.rank*.json.
"""

import argparse
import contextlib
from typing import Any

import torch
import torch.distributed as dist
from cnn import Images, Network
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import tlkit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--channels", type=int, default=24)
    parser.add_argument("--bucket-mb", type=float, help="gradients that DDP sends at once (default: what DDP chooses)")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    tlkit.instrument()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    dataset = Images(args.steps * args.batch_size * dist.get_world_size())
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    network = Network(args.channels)
    model: Any
    if args.fsdp:
        model = fully_shard(network)
    else:
        model = DistributedDataParallel(network, gradient_as_bucket_view=True, bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.profiler.schedule(wait=5, warmup=2, active=6, repeat=1)
    profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=tlkit.trace_handler()) if args.profile else None

    loss = torch.zeros(())
    with profiler or contextlib.nullcontext():
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if profiler is not None:
                profiler.step()
    dist.all_reduce(loss.detach())
    if dist.get_rank() == 0:
        size = dist.get_world_size()
        print(f"{args.steps} steps on {size} ranks, last loss {loss.item() / size:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
