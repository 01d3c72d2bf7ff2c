"""Writes traces that look like those of the PyTorch profiler on a GPU, of any size, for benchmarks.

    python benchmarks/kineto_like.py 200 t200.json          # megabytes; the same bytes every time

Every step has a data loader, a forward pass of operators that launch kernels, a backward pass whose gradients are reduced by NCCL
on a stream of its own, and an optimizer.  What the sums must be is known from how it is made (`Totals`).
"""

import argparse
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

OPERATORS = (
    "aten::linear",
    "aten::addmm",
    "aten::relu",
    "aten::layer_norm",
    "aten::softmax",
    "aten::matmul",
    "aten::add_",
)
KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, at::detail::Array<char*, 3> >(int)",
    "ampere_sgemm_128x64_tn",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float>(cublasSplitKParams<float>)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*, float const*, int)",
)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


@dataclass
class Totals:
    """What the trace holds."""

    events: int = 0
    kernels: int = 0
    time_ns_of_category: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    steps: int = 0


class Writer:
    """Writes events of one rank."""

    def __init__(self, file: IO[str], rank: int, world_size: int, base_us: int) -> None:
        self._file = file
        self._rank = rank
        self.totals = Totals()
        self._base_us = base_us
        self._separator = ""
        header = {
            "schemaVersion": 1,
            "deviceProperties": [
                {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85031714816, "numSms": 132}
            ],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_count": 1},
            "with_flops": 0,
            "record_shapes": 1,
        }
        file.write(json.dumps(header, indent=2)[:-2] + ',\n  "traceEvents": [')

    def span(
        self, category: str, name: str, pid: int | str, tid: int | str, start_ns: int, dur_ns: int, args: str
    ) -> None:
        """A complete event."""
        self.totals.events += 1
        self.totals.time_ns_of_category[category] += dur_ns
        ts = f"{self._base_us + start_ns // 1000}.{start_ns % 1000:03d}"
        head = f'"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {json.dumps(pid)}, "tid": {json.dumps(tid)}'
        self._file.write(
            f'{self._separator}\n  {{\n    {head},\n    "ts": {ts}, "dur": {dur_ns // 1000}.{dur_ns % 1000:03d},\n'
            f'    "args": {{\n      {args}\n    }}\n  }}'
        )
        self._separator = ","

    def close(self) -> None:
        """Finish the file."""
        self._file.write('\n  ],\n  "displayTimeUnit": "ms",\n  "traceName": "made-up"\n}\n')


def write(path: Path, nbytes: int, *, rank: int = 0, world_size: int = 8, seed: int = 0, first: int = 0) -> Totals:
    """Write a trace of about `nbytes`.

    Args:
        first: added to every number that counts something: ids, correlations, steps.
    """
    chance = random.Random(seed)  # noqa: S311  no secret
    pid, gpu = 5000 + rank, 0
    with path.open("w", encoding="utf-8") as file:
        out = Writer(file, rank, world_size, 1_700_000_000_000_000)
        now, correlation, external = 0, first + 1, first + 1
        while file.tell() < nbytes:
            step_start, gpu_free, nccl_free = now, now, now
            out.span(
                "user_annotation",
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                pid,
                pid,
                now,
                800_000,
                f'"External id": {external}, "Ev Idx": {first + out.totals.events}',
            )
            now += 900_000
            for number in range(400):
                backward = number >= 200
                operator = OPERATORS[number % len(OPERATORS)]
                host_ns = 9_000 + chance.randrange(3_000)
                external += 1
                out.span(
                    "cpu_op",
                    operator,
                    pid,
                    pid + (1 if backward else 0),
                    now,
                    host_ns,
                    f'"External id": {external},"Record function id": 0, "Concrete Inputs": ["", "", "1"], '
                    f'"Input type": ["float", "float", ""], "Input Dims": [[64, 1024], [1024, 4096], []], '
                    f'"Ev Idx": {first + out.totals.events}',
                )
                correlation += 1
                out.span(
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    pid,
                    pid,
                    now + 4_000,
                    3_500,
                    f'"External id": {external}, "cbid": 211, "correlation": {correlation}',
                )
                kernel_ns = 6_000 + chance.randrange(20_000)
                gpu_free = max(gpu_free, now + 9_000)
                out.totals.kernels += 1
                out.span(
                    "kernel",
                    KERNELS[number % len(KERNELS)],
                    gpu,
                    7,
                    gpu_free,
                    kernel_ns,
                    f'"External id": {external}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
                    f'"correlation": {correlation}, "registers per thread": 32, "shared memory": 0, '
                    f'"blocks per SM": 1.24, "warps per SM": 9.93, "grid": [164, 1, 1], "block": [256, 1, 1], '
                    f'"est. achieved occupancy %": 62',
                )
                gpu_free += kernel_ns
                now += host_ns + 1_000
                if backward and number % 50 == 49:
                    correlation += 1
                    nelems = 1 << 22
                    start = max(gpu_free, nccl_free)
                    dur = 900_000 + chance.randrange(100_000)
                    out.totals.kernels += 1
                    out.span(
                        "kernel",
                        NCCL,
                        gpu,
                        20,
                        start,
                        dur,
                        f'"Collective name": "allreduce", "In msg nelems": {nelems}, "Out msg nelems": {nelems}, '
                        f'"Group size": {world_size}, "dtype": "Float", "Process Group Name": "0", '
                        f'"Process Group Ranks": "{list(range(world_size))}", "External id": {external}, "device": 0, '
                        f'"context": 1, "stream": 20, "correlation": {correlation}',
                    )
                    nccl_free = start + dur
            now = max(now, gpu_free, nccl_free)
            out.span(
                "user_annotation", "Optimizer.step#AdamW.step", pid, pid, now, 300_000, f'"External id": {external}'
            )
            now += 350_000
            out.span(
                "user_annotation",
                f"ProfilerStep#{first + out.totals.steps}",
                pid,
                pid,
                step_start,
                now - step_start,
                f'"External id": {external}',
            )
            out.totals.steps += 1
            now += 5_000
        out.close()
    return out.totals


def main() -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args()
    totals = write(arguments.path, round(arguments.megabytes * 1e6), rank=arguments.rank, seed=arguments.rank)
    print(f"{arguments.path}: {totals.events} events, {totals.kernels} kernels, {totals.steps} steps")


if __name__ == "__main__":
    main()
