"""What a collective costs on top of the raw transport: this runtime against mpi4py and torch.distributed's Gloo.

    python benchmarks/collectives.py          # two ranks; --json for programs

Blocking allreduces from 4 B to 64 MB (latency and bus bandwidth), a barrier, and the rate of 1,000 asynchronous allreduces of
4 KB.  All jobs run at the same time and work in turn (`jobs.py`); a ratio is taken for every round.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from jobs import Job, has_horovod, serve, spread

SIZES = (4, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
ASYNC_COUNT = 1000
ASYNC_NBYTES = 4 << 10
RAW_OF = {
    "tlkit mpi": "raw mpi",
    "tlkit shm": "raw gloo",
    "tlkit gloo": "raw gloo",
    "horovod mpi": "raw mpi",
    "horovod gloo": "raw gloo",
}

Collective = Callable[[Any], Any]


def open_mpi() -> tuple[Collective, Callable[[], Any], None]:
    """Allreduce in place and barrier, with mpi4py alone."""
    from mpi4py import MPI  # noqa: PLC0415  only the ranks need it

    world = MPI.COMM_WORLD
    return lambda data: world.Allreduce(MPI.IN_PLACE, data.numpy()), world.Barrier, None


def open_gloo() -> tuple[Collective, Callable[[], Any], Any]:
    """The same with torch.distributed alone, and its asynchronous form."""
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")

    def start(data: Any, _: str) -> Any:
        return dist.all_reduce(data, async_op=True)

    return dist.all_reduce, dist.barrier, (start, lambda work: work.wait())


def open_horovod() -> tuple[Collective, Callable[[], Any], Any]:
    """The same through Horovod's interface: this runtime, or Horovod itself."""
    import horovod.torch as hvd  # noqa: PLC0415

    hvd.init()
    return (
        lambda data: hvd.allreduce_(data, op=hvd.Sum, name=f"blocking.{data.numel()}"),
        hvd.barrier,
        (lambda data, name: hvd.allreduce_async_(data, op=hvd.Sum, name=name), hvd.synchronize),
    )


def rank_main(peer: str) -> None:
    """One rank of one job."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    allreduce, barrier, asynchronous = {"raw mpi": open_mpi, "raw gloo": open_gloo}.get(peer, open_horovod)()
    buffers: dict[int, Any] = {}
    many = [torch.zeros(ASYNC_NBYTES // 4) for _ in range(ASYNC_COUNT)]

    def work(what: list[Any]) -> float:
        kind: str = what[0]
        nbytes: int = what[1]
        repeat: int = what[2]
        begun = time.perf_counter()
        if kind == "allreduce":
            data = buffers.setdefault(nbytes, torch.zeros(nbytes // 4))
            barrier()
            allreduce(data)  # the job has slept: its caches are cold
            begun = time.perf_counter()
            for _ in range(repeat):
                allreduce(data)
        elif kind == "barrier":
            for _ in range(repeat):
                barrier()
        elif asynchronous is None:
            return 0.0
        else:
            start, wait = asynchronous
            barrier()
            begun = time.perf_counter()
            for _ in range(repeat):
                for handle in [start(data, f"many.{number}") for number, data in enumerate(many)]:
                    wait(handle)
        return (time.perf_counter() - begun) / repeat

    serve(work)


def repeats(nbytes: int) -> int:
    """How often within one round."""
    return max(2, min(100, (16 << 20) // nbytes))


def measure(rounds: int) -> list[dict[str, Any]]:
    """Every case on every peer, a row each."""
    script = str(Path(__file__))
    peers = {
        "tlkit mpi": (True, {"HOROVOD_CPU_OPERATIONS": "mpi"}),
        "raw mpi": (True, {}),
        "tlkit shm": (False, {"HOROVOD_CPU_OPERATIONS": "shm"}),
        "tlkit gloo": (False, {"HOROVOD_CPU_OPERATIONS": "gloo"}),
        "raw gloo": (False, {}),
    }
    if has_horovod():
        peers["horovod mpi"] = (True, {"TLKIT_HOROVOD_ALIAS": "0"})
        peers["horovod gloo"] = (False, {"TLKIT_HOROVOD_ALIAS": "0"})
    jobs = [
        Job(peer, [script, "--rank", "--peer", peer], 2, mpi=mpi, environment=environment)
        for peer, (mpi, environment) in peers.items()
    ]
    cases = [("allreduce", nbytes, repeats(nbytes)) for nbytes in SIZES]
    cases += [("barrier", 0, 100), ("async", ASYNC_NBYTES, 2)]
    rows = []
    try:
        for case in cases:
            times: dict[str, list[float]] = {peer: [] for peer in peers}
            for number in range(rounds + 2):
                shift = number % len(jobs)
                for job in jobs[shift:] + jobs[:shift]:
                    took = max(job.work(case))
                    if number >= 2:
                        times[job.name].append(took)
            rows += [describe(case[0], case[1], peer, times) for peer in peers if times[peer][0]]
    finally:
        for job in jobs:
            job.end()
    return rows


def describe(kind: str, nbytes: int, peer: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """One row of the table; bus bandwidth as nccl-tests define it: 2 (n - 1) / n of the bytes, which is 1 for two ranks."""
    median, low, high = spread([1e6 * value for value in times[peer]])
    row: dict[str, Any] = {"case": kind, "nbytes": nbytes, "peer": peer}
    if kind == "async":
        rates = spread([ASYNC_COUNT / value for value in times[peer]])
        return row | {"tensors_per_s": round(rates[0]), "quartiles": [round(rates[1]), round(rates[2])]}
    row |= {"median_us": round(median, 1), "quartiles_us": [round(low, 1), round(high, 1)]}
    if nbytes:
        row["busbw_gb_s"] = round(nbytes / median / 1e3, 3)
    if raw := RAW_OF.get(peer):
        pairs = list(zip(times[peer], times[raw], strict=True))
        row["over_raw_us"] = round(spread([1e6 * (own - theirs) for own, theirs in pairs])[0], 1)
        row["ratio_to_raw"] = round(spread([own / theirs for own, theirs in pairs])[0], 3)
    return row


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="rounds of every case (default 25)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank_main(arguments.peer)
        return
    rows = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        f"{'case':10} {'bytes':>10}  {'':12} {'us (quartiles)':>32} {'busbw GB/s':>10} {'over raw us':>12} {'ratio':>6}"
    )
    for row in rows:
        low, high = row.get("quartiles_us") or row["quartiles"]
        figure = row.get("median_us") or row["tensors_per_s"]
        unit = "" if "median_us" in row else " tensors/s"
        print(
            f"{row['case']:10} {row['nbytes']:10}  {row['peer']:12} {f'{figure} ({low} to {high}){unit}':>32} "
            f"{row.get('busbw_gb_s', ''):>10} {row.get('over_raw_us', ''):>12} {row.get('ratio_to_raw', ''):>6}"
        )


if __name__ == "__main__":
    main()
