"""How long a training step takes: this runtime on each transport against DistributedDataParallel, and Horovod if it is there.

    python benchmarks/step_time.py            # two ranks; --json for programs

All jobs run at the same time and train in turn, a few steps each (`jobs.py`); a ratio is taken for every round.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "samples")]

from jobs import Job, has_horovod, serve, spread  # noqa: E402  needs the path above

MODELS = ("cnn", "transformer", "linear", "tiny400", "tiny")


def build(name: str) -> tuple[Any, Any]:
    """A model and its input: 60 tensors of 0.3 MB, 149 of 38 MB, 6 of 68 MB; 400 of 1 KB, 1,000 of 4 KB."""
    import torch  # noqa: PLC0415  only the ranks need it

    torch.manual_seed(0)
    if name == "transformer":
        from train_transformer import Transformer  # noqa: PLC0415

        return Transformer(256, 32, width=256), torch.randint(256, (2, 32))
    if name == "cnn":
        from cnn import Network  # noqa: PLC0415

        return Network(), torch.randn(16, 3, 32, 32)

    if name == "linear":
        layers = [torch.nn.Linear(64, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(4096, 10)), torch.randn(16, 64)

    count, size = (400, 256) if name == "tiny400" else (1000, 1024)

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(size)) for _ in range(count)])

        def forward(self, x: Any) -> Any:
            return sum((part * x).sum() for part in self.parts)

    return Tiny(), torch.randn(size)


def rank_main(name: str, peer: str) -> None:
    """One rank of one job."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    model, data = build(name)
    plain = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer: Any = plain
    if peer == "ddp":
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        import horovod.torch as hvd  # noqa: PLC0415

        hvd.init()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())

    def train(steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            model(data).float().square().mean().backward()
            optimizer.step()
        return (time.perf_counter() - begun) / steps

    serve(train)


def measure(name: str, rounds: int, steps: int) -> dict[str, Any]:
    """Step times of all peers on one model."""
    script = str(Path(__file__))
    peers = {
        "tlkit mpi": (True, {"HOROVOD_CPU_OPERATIONS": "mpi"}),
        "tlkit shm": (False, {"HOROVOD_CPU_OPERATIONS": "shm"}),
        "tlkit gloo": (False, {"HOROVOD_CPU_OPERATIONS": "gloo"}),
        "ddp gloo": (False, {}),
    }
    if has_horovod():
        peers["horovod mpi"] = (True, {"TLKIT_HOROVOD_ALIAS": "0"})
        peers["horovod gloo"] = (False, {"TLKIT_HOROVOD_ALIAS": "0"})
    jobs = [
        Job(peer, [script, "--rank", "--model", name, "--peer", peer.split()[0]], 2, mpi=mpi, environment=environment)
        for peer, (mpi, environment) in peers.items()
    ]
    times: dict[str, list[float]] = {peer: [] for peer in peers}
    try:
        for number in range(rounds + 2):
            for job in jobs[number % len(jobs) :] + jobs[: number % len(jobs)]:
                took = max(job.work(steps))
                if number >= 2:
                    times[job.name].append(took)
    finally:
        for job in jobs:
            job.end()
    best = min(
        (peer for peer in peers if not peer.startswith("tlkit")), key=lambda peer: statistics.median(times[peer])
    )
    rows = []
    for peer, took in times.items():
        median, low, high = spread([1e3 * value for value in took])
        ratio, ratio_low, ratio_high = spread([a / b for a, b in zip(took, times[best], strict=True)])
        rows.append(
            {
                "model": name,
                "peer": peer,
                "median_ms": round(median, 2),
                "quartiles_ms": [round(low, 2), round(high, 2)],
                "against": best,
                "ratio": round(ratio, 3),
                "ratio_quartiles": [round(ratio_low, 3), round(ratio_high, 3)],
            }
        )
    return {"rows": rows}


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, help="only this model")
    parser.add_argument("--rounds", type=int, default=25, help="rounds (default 25)")
    parser.add_argument("--steps", type=int, default=8, help="steps a round and job (default 8)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank_main(arguments.model, arguments.peer)
        return
    rows = []
    for name in [arguments.model] if arguments.model else MODELS:
        rows += measure(name, arguments.rounds, arguments.steps)["rows"]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'model':12} {'':13} {'ms (quartiles)':>26}   ratio to the best peer (quartiles)")
    for row in rows:
        low, high = row["quartiles_ms"]
        ratio_low, ratio_high = row["ratio_quartiles"]
        times = f"{row['median_ms']:.1f} ({low:.1f} to {high:.1f})"
        ratios = f"{row['ratio']:.2f} ({ratio_low:.2f} to {ratio_high:.2f}) of {row['against']}"
        print(f"{row['model']:12} {row['peer']:13} {times:>26}   {ratios}")


if __name__ == "__main__":
    main()
