"""What it costs that a piece is acknowledged only when the disk has it.

    python benchmarks/acknowledging.py               # pieces of 1 kB, 64 kB and 1 MiB, with and without, in turn
    python benchmarks/acknowledging.py --folder DIR  # on the disk that DIR lies on

The store of `tl-collect serve` takes pieces from one thread and from eight; without: `os.fdatasync` does nothing.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from tlkit.collector.service.store import ShardStore

SIZES = {"1 kB": 1000, "64 kB": 64_000, "1 MiB": 1 << 20}
SYNC = os.fdatasync


def forget(_: object) -> None:
    """Do not wait for the disk."""


def append(store: ShardStore, shard: str, nbytes: int, count: int) -> None:
    """Send a shard in pieces."""
    piece = os.urandom(nbytes)
    for number in range(count):
        store.append("r", shard, number * nbytes, piece)


def seconds_a_piece(folder: Path, nbytes: int, threads: int, count: int) -> float:
    """Mean time until a piece is acknowledged, of all threads together."""
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        store = ShardStore(Path(kept))
        senders = [
            threading.Thread(target=append, args=(store, f"t.rank{number}.json", nbytes, count // threads))
            for number in range(threads)
        ]
        began = time.perf_counter()
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        took_s = time.perf_counter() - began
        store.close()
    return took_s / (count // threads * threads)


def main() -> None:
    """Measure in turn, so that what else the machine does is in both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print("piece    threads   without    with    (ms a piece, median of rounds in turn)")
    for name, nbytes in SIZES.items():
        for threads in (1, 8):
            count = max(64, min(400, 64_000_000 // nbytes))
            found: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(arguments.rounds):
                for syncs in (False, True):
                    setattr(os, "fdatasync", SYNC if syncs else forget)  # noqa: B010  its type is what the real one takes
                    found[syncs].append(1e3 * seconds_a_piece(arguments.folder, nbytes, threads, count))
            without, with_ = (statistics.median(found[syncs]) for syncs in (False, True))
            print(f"{name:6}  {threads:8}  {without:8.3f}  {with_:6.3f}", flush=True)


if __name__ == "__main__":
    main()
