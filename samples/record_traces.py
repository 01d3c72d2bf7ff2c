"""Records the small traces in samples/traces: a training with two ranks for each bottleneck, slowed down on purpose.

    python samples/record_traces.py                 # all of them, a few minutes on two idle cores
    python samples/record_traces.py slow-loader     # one
    tl-analyze samples/traces/slow-loader/t.json.gz

What each is about, and the verdict that it should get, is in `BOTTLENECKS`; the test of the samples reads it from here.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
TRACES = REPOSITORY / "samples" / "traces"
TRAIN = REPOSITORY / "benchmarks" / "diagnosis" / "train.py"


class Bottleneck(NamedTuple):
    """One way to be slow."""

    fault: str
    class_: str
    cause: str
    about: str
    settings: dict[str, str] = {}  # noqa: RUF012  read only
    arguments: tuple[str, ...] = ()


BOTTLENECKS = {
    "healthy": Bottleneck("none", "healthy", "", "nothing is wrong", arguments=("--batch-size", "32")),
    "slow-loader": Bottleneck("slow-dataset:ms=60", "data", "slow-loader", "reading takes 60 ms a batch"),
    "slow-loader-of-one-rank": Bottleneck(
        "slow-collate:rank=1,ms=60", "data", "slow-loader-on-some-ranks", "collation takes 60 ms longer on rank 1"
    ),
    "slow-rank": Bottleneck("slow-forward:rank=1,ms=50", "straggler", "slow-forward", "rank 1 sleeps 50 ms in forward"),
    "slow-loop": Bottleneck(
        "slow-host:rank=0,ms=50", "straggler", "slow-host-code", "rank 0 sleeps 50 ms between the calls"
    ),
    "uneven-batches": Bottleneck(
        "big-batches:rank=1", "straggler", "uneven-batches", "rank 1 has three times as large batches"
    ),
    "no-fusion": Bottleneck(
        "none",
        "communication",
        "many-small-collectives",
        "every tensor travels alone",
        {"HOROVOD_FUSION_THRESHOLD": "0"},
    ),
    "huge-gradient": Bottleneck("huge-tensor", "communication", "oversize-gradient", "one layer of 36 MB"),
    "slow-optimizer": Bottleneck(
        "heavy-optimizer", "compute", "slow-optimizer-step", "each update moves 256 MB through memory"
    ),
    "checkpoints": Bottleneck(
        "checkpoint:ms=300", "compute", "checkpoint-stall", "rank 0 writes to a slow disk every tenth step"
    ),
    "garbage": Bottleneck(
        "garbage", "compute", "garbage-collection", "two million objects are looked through every fourth step"
    ),
}


def record(name: str, steps: int) -> None:
    """Train, and keep the shards of both ranks, packed."""
    bottleneck = BOTTLENECKS[name]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "HOROVOD_TIMELINE": f"{folder}/t.json",
            "OMP_NUM_THREADS": "1",
            **bottleneck.settings,
        }
        subprocess.run(  # noqa: S603  our own script
            [sys.executable, "-m", "tlkit.runtime.launch.cli", "-np", "2", sys.executable, str(TRAIN), "--steps", str(steps),
             "--fault", bottleneck.fault, *bottleneck.arguments],
            env=environment, check=True,
        )  # fmt: skip
        target = TRACES / name
        target.mkdir(parents=True, exist_ok=True)
        for shard in sorted(Path(folder).glob("*.json")):
            with shard.open("rb") as source, gzip.GzipFile(target / f"{shard.name}.gz", "wb", mtime=0) as packed:
                shutil.copyfileobj(source, packed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BOTTLENECKS)}; all without")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    unknown = set(args.names) - set(BOTTLENECKS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: choose of {', '.join(BOTTLENECKS)}")
    for name in args.names or BOTTLENECKS:
        record(name, args.steps)
        nbytes = sum(path.stat().st_size for path in (TRACES / name).iterdir())
        print(f"{name}: {nbytes // 1024} KiB, {BOTTLENECKS[name].about}")


if __name__ == "__main__":
    main()
