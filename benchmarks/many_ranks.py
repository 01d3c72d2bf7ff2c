"""How soon a collector names a slow rank of a large job that records sums of steps only (HOROVOD_TIMELINE_LEVEL=steps).

    python benchmarks/many_ranks.py                              # 1,024 ranks, 300 ms a step
    python benchmarks/many_ranks.py --ranks 256 --before 30      # of a job that has run for half a minute

Real shards grow in real time in a folder, written by the recorder's own format in one process for all ranks; `tl-collect push`
sends them and `tl-collect serve` diagnoses them, all on this machine.  After `--before` seconds one rank's forward takes
`--slower` times as long.  Printed is when the collector's report first names that rank, and no other, as a straggler, counted
from the beginning of its first slow step.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from tlkit.timeline.record.sampled_format import NO_STEP, SampledFormat
from tlkit.timeline.record.shard_file import shard_path
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader
from tlkit.timeline.vocabulary import LANE_TIDS, STEP, SYNCHRONIZE, LaneKind

_MS = 1_000_000
_COMPUTE, _DATA, _STEPS = (LANE_TIDS[kind] for kind in (LaneKind.COMPUTE, LaneKind.DATA, LaneKind.STEPS))
#: Shares of a usual step; what is left is waited for the slowest rank.
_PARTS = (
    ("DATA_WAIT", "data", _DATA, 0.05),
    ("FORWARD", "forward", _COMPUTE, 0.3),
    ("BACKWARD", "backward", _COMPUTE, 0.5),
)
_OPTIMIZER = 0.05
_NOISE = 0.02
RANKS_A_HOST = 8


class Rank:
    """One rank's shard."""

    def __init__(self, folder: Path, rank: int, size: int, origin_ns: int) -> None:
        clock = ShardClock(origin_ns=origin_ns, origin_unix_ns=time.time_ns())
        header = ShardHeader(
            run_id="5eed", rank=rank, size=size, local_rank=rank % RANKS_A_HOST, host=f"host-{rank // RANKS_A_HOST}",
            boot_id=f"boot-{rank // RANKS_A_HOST}", process_id=1000 + rank, device="cpu", clock=clock,
        )  # fmt: skip
        self.form = SampledFormat(header, NO_STEP)
        self.path = shard_path(folder / "t.json", rank)
        self.path.write_text("[\n" + "".join(self.form.head()))

    def step(self, number: int, start_ns: int, end_ns: int, parts_ns: list[int]) -> None:
        """A step has ended; the file grows when the format has something to write."""
        at_ns, text = start_ns, ""
        for (name, category, lane, _), dur_ns in zip(_PARTS, parts_ns, strict=True):
            text += self.form.span(name, category, lane, at_ns, at_ns + dur_ns, None)
            at_ns += dur_ns
        after_ns = end_ns - round(_OPTIMIZER * (end_ns - start_ns))
        text += self.form.span(SYNCHRONIZE, "other", _COMPUTE, at_ns, max(after_ns, at_ns), None)
        text += self.form.span("OPTIMIZER_STEP", "optimizer", _COMPUTE, max(after_ns, at_ns), end_ns, None)
        text += self.form.span(STEP, "step", _STEPS, start_ns, end_ns, {"step": number})
        if text:
            with self.path.open("a") as file:
                file.write(text)


def train(folder: Path, arguments: argparse.Namespace, until: float) -> None:
    """Write all ranks' steps as time goes by; prints when the first slow step began (seconds of the wall clock)."""
    dice = random.Random(arguments.seed)  # noqa: S311  no secret
    origin_ns = time.monotonic_ns()
    ranks = [Rank(folder, rank, arguments.ranks, origin_ns) for rank in range(arguments.ranks)]
    print("ready", flush=True)
    usual_ns = arguments.step_ms * _MS
    number, at_ns, told = 0, time.monotonic_ns(), False
    first_slow_ns = at_ns + round(arguments.before * 1e9)
    while time.monotonic() < until:
        is_slow = at_ns >= first_slow_ns
        if is_slow and not told:
            told = True
            print(time.time() - (time.monotonic_ns() - at_ns) / 1e9, flush=True)
        lengths = [
            [round(usual_ns * share * dice.uniform(1 - _NOISE, 1 + _NOISE)) for *_, share in _PARTS] for _ in ranks
        ]
        if is_slow:
            lengths[arguments.slow][1] = round(lengths[arguments.slow][1] * arguments.slower)
        end_ns = at_ns + round(max(map(sum, lengths)) / (1 - _OPTIMIZER))
        time.sleep(max(end_ns - time.monotonic_ns(), 0) / 1e9)
        for rank, parts_ns in zip(ranks, lengths, strict=True):
            rank.step(number, at_ns, end_ns, parts_ns)
        number, at_ns = number + 1, end_ns
        if time.monotonic_ns() > end_ns + usual_ns:  # this machine is slower than the job
            at_ns = time.monotonic_ns()


def report_of(url: str) -> dict[str, Any] | None:
    """What the collector says of its only run."""
    try:
        with urllib.request.urlopen(f"{url}/v1/runs", timeout=60) as answer:  # noqa: S310  our own collector
            runs = json.load(answer)["runs"]
        if not runs:
            return None
        with urllib.request.urlopen(f"{url}/v1/runs/{runs[0]}/report", timeout=60) as answer:  # noqa: S310  as above
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return None


def names(report: dict[str, Any], rank: int) -> bool:
    """Whether the report says that this rank, and no other, is slow."""
    return any(finding["class"] == "straggler" and finding["ranks"] == [rank] for finding in report.get("findings", []))


def measure(arguments: argparse.Namespace) -> None:
    """Print the figures of one run."""
    tool = str(Path(sys.executable).parent / "tl-collect")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as base:
        shards, kept = Path(base) / "shards", Path(base) / "kept"
        shards.mkdir()
        server = subprocess.Popen(
            [tool, "serve", str(kept), "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert server.stdout is not None
        found = re.search(r"http://[^/\s]+", server.stdout.readline())
        assert found is not None
        url = found[0]
        job = subprocess.Popen(
            [sys.executable, __file__, "--train", str(shards), *sys.argv[1:]], stdout=subprocess.PIPE, text=True
        )
        assert job.stdout is not None
        assert job.stdout.readline().strip() == "ready"
        # In a real job each of 128 hosts has a sender that takes what its ranks leave; this one, for all of them, has to share
        # the cores with the collector and the job on equal terms.
        equal = ["nice", "-n", "-15"] if os.geteuid() == 0 else []
        command = [*equal, tool, "push", str(shards), "--to", url]
        pusher = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            began_s = float(job.stdout.readline())
            deadline = time.time() + arguments.patience
            while time.time() < deadline:
                report = report_of(url)
                if report is not None and names(report, arguments.slow):
                    print(f"named {time.time() - began_s:.1f} s after its first slow step began")
                    break
                time.sleep(0.2)
            else:
                told = [] if report is None else [finding["cause"] for finding in report.get("findings", [])]
                print(f"not named within {arguments.patience:.0f} s; findings: {told}")
            nbytes = sum(path.stat().st_size for path in shards.iterdir())
            for name, process in (("collector", server), ("sender", pusher), ("all ranks' writer", job)):
                times, memory = psutil.Process(process.pid).cpu_times(), psutil.Process(process.pid).memory_info()
                print(f"{name}: {times.user + times.system:.1f} s of processor, {memory.rss / 1e6:.0f} MB")
            print(f"{arguments.ranks} shards, {nbytes / 1e6:.1f} MB; load average {os.getloadavg()[0]:.1f}")
        finally:
            for process in (pusher, job, server):
                process.terminate()
            for process in (pusher, job, server):
                process.wait()


def main() -> None:
    """Run the job, or measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", type=int, default=1024)
    add("--step-ms", type=int, default=300)
    add("--before", type=float, default=60.0, help="seconds in which all ranks are as fast as each other")
    add("--slow", type=int, default=700, metavar="RANK")
    add("--slower", type=float, default=1.5)
    add("--patience", type=float, default=120.0, help="seconds after which the collector may be asked no more")
    add("--seed", type=int, default=1)
    add("--train", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.slow = min(arguments.slow, arguments.ranks - 1)
    if arguments.train:
        train(Path(arguments.train), arguments, time.monotonic() + arguments.before + arguments.patience + 60)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
