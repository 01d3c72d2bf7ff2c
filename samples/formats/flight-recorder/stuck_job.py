"""A job of three ranks in which one leaves out a collective: `tl-run -np 3 python stuck_job.py DIR`, then `tl-analyze DIR`."""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
first_two = dist.new_group([0, 1])
for _ in range(4):
    dist.all_reduce(torch.ones(1000))
if rank < 2:
    dist.broadcast(torch.ones(7, 3), 0, group=first_two)
dist.barrier()
if rank != 1:
    kept = dist.all_reduce(torch.ones(100), async_op=True)
time.sleep(1)
# With NCCL the watchdog writes this when a collective has timed out.
Path(sys.argv[1], f"nccl_trace_rank_{rank}").write_bytes(torch._C._distributed_c10d._dump_fr_trace())  # type: ignore[attr-defined]  # noqa: SLF001  there is no other way
os._exit(0)
