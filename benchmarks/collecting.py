"""What the collector takes and costs.

    python benchmarks/collecting.py TIMELINE…       # shards to push

Pushes the shards to a collector of its own, on this machine, and prints events a second of wall time and of each side's
processor.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tlkit.timeline import open_trace


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="+")
    paths = parser.parse_args().trace
    meta = open_trace(paths).meta
    nbytes = sum(Path(name).stat().st_size for name in meta.files)
    tool = str(Path(sys.executable).parent / "tl-collect")
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([tool, "serve", folder, "--port", "0"], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        found = re.search(r"http://[^/\s]+", server.stdout.readline())
        assert found is not None
        before = psutil.Process(server.pid).cpu_times()
        began = time.perf_counter()
        pusher = subprocess.Popen([tool, "push", *paths, "--to", found[0], "--once"], stdout=subprocess.DEVNULL)
        pushing = psutil.Process(pusher.pid)
        used = 0.0
        while pusher.poll() is None:
            try:
                times = pushing.cpu_times()
                used = times.user + times.system
            except psutil.NoSuchProcess:
                break
            time.sleep(0.01)
        took = time.perf_counter() - began
        after = psutil.Process(server.pid).cpu_times()
        server.terminate()
        server.wait()
    of_server = after.user + after.system - before.user - before.system
    print(f"{meta.events:,} events, {nbytes / 1e6:.0f} MB in {took:.2f} s (start of the sender included)")
    print(f"{meta.events / took:,.0f} events/s by wall time")
    print(
        f"processor: collector {of_server:.2f} s (analysis that has begun included), sender {used:.2f} s (imports included)"
    )
    print(f"{meta.events / max(of_server, 0.01):,.0f} events/s of the collector's processor time")


if __name__ == "__main__":
    main()
