"""What the analysis costs beside loading: many ranks, a million events.

python benchmarks/analysis.py TRACE…          # best of three; cold (nothing kept) and warm (kept)
"""

import argparse
import os
import tempfile
import time

from tlkit.collector import analyze
from tlkit.timeline import open_trace


def best_of(count: int, work: object) -> float:
    """Seconds of the fastest run."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        work()  # type: ignore[operator]
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="+")
    paths = parser.parse_args().trace
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TLKIT_CACHE_DIR"] = folder
        os.environ["TLKIT_CACHE_BYTES"] = "0"
        trace = open_trace(paths)
        print(f"{trace.meta.events:,} events, {len(trace.meta.ranks)} ranks, {len(trace.steps):,} steps of ranks")
        load = best_of(3, lambda: open_trace(paths))
        cold = best_of(3, lambda: analyze(paths).critical_path)
        del os.environ["TLKIT_CACHE_BYTES"]
        open_trace(paths)
        warm_load = best_of(3, lambda: open_trace(paths))
        warm = best_of(3, lambda: analyze(paths).critical_path)
    print(f"cold: load {load:.2f} s, with analysis {cold:.2f} s, {cold / load:.2f} times")
    print(f"warm: load {warm_load:.2f} s, with analysis {warm:.2f} s")


if __name__ == "__main__":
    main()
