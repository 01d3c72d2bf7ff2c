"""Whether a job stays what it was: ranks that are killed, memory over many steps, what an idle job costs, what it leaves.

    python benchmarks/endurance.py                    # 50 kills, 10,000 steps, 20 s of idleness, two ranks; a simulated week
    python benchmarks/endurance.py --only kills --json

Each line says what was asked of the runtime and what was seen.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tlkit.timeline import open_trace
from tlkit.timeline.record.sampled_format import NO_STEP, Sampling, format_for
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader
from tlkit.timeline.record.shard_parts import parse_keep
from tlkit.timeline.record.shard_writer import ShardWriter
from tlkit.timeline.vocabulary import (
    CPU_COUNTERS,
    LANE_TIDS,
    PROCESS_CPU_COUNTER,
    STARVED_COUNTERS,
    STEP,
    Category,
    LaneKind,
)

REPOSITORY = Path(__file__).resolve().parent.parent

TRAIN = """
import os, sys, time, torch
import tlkit.runtime.torch as hvd
torch.set_num_threads(1)
hvd.init()
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(10)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1e-4), net.named_parameters())

def step():
    optimizer.zero_grad()
    net(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    if steps % 7 == 0:
        hvd.allgather(torch.ones(hvd.rank() + 1, 3))
        hvd.alltoall(torch.ones(hvd.size() * 2))

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

steps = 0
"""
FOREVER = (
    TRAIN
    + """
print("GO", flush=True)
while True:
    step()
    steps += 1
"""
)
COUNTED = (
    TRAIN
    + """
amounts = []
while steps < int(sys.argv[1]):
    step()
    steps += 1
    if steps % (int(sys.argv[1]) // 10) == 0:
        amounts.append(resident())
print(amounts, flush=True)
"""
)
IDLE = (
    TRAIN
    + """
for steps in range(20):
    step()
before = time.process_time()
time.sleep(float(sys.argv[1]))
used = time.process_time() - before
hvd.barrier()
print(used, flush=True)
"""
)
LEFT = (
    TRAIN
    + """
import threading
step()
hvd.shutdown()
print([thread.name for thread in threading.enumerate() if "tlkit" in thread.name], flush=True)
"""
)


RECORDED = """
import sys, time
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader
from tlkit.timeline.record.shard_writer import ShardWriter
clock = ShardClock(origin_ns=time.monotonic_ns(), origin_unix_ns=time.time_ns())
header = ShardHeader(
    run_id="5eed", rank=0, size=1, local_rank=0, host="h", boot_id="b", process_id=1, device="cpu", clock=clock
)
writer = ShardWriter(sys.argv[1], header)
writer.start()
print("GO", flush=True)
while True:
    at = time.monotonic_ns()
    writer.span(str(at), "forward", 1, at, at + 1000, None)
    time.sleep(0.002)
"""

_STEP_NS = 6 * 10**9
#: What a step of a simulated week is made of, in tenths of it.
_PHASES = (
    (0, 1, "DATA_WAIT", "data", LaneKind.DATA),
    (1, 4, "FORWARD", "forward", LaneKind.COMPUTE),
    (4, 8, "BACKWARD", "backward", LaneKind.COMPUTE),
    (8, 9, "SYNCHRONIZE", "other", LaneKind.COMPUTE),
    (9, 10, "OPTIMIZER_STEP", "optimizer", LaneKind.COMPUTE),
)
_COUNTERS = {
    CPU_COUNTERS[Category.FORWARD]: 0.25e9,
    STARVED_COUNTERS[Category.FORWARD]: 0.01e9,
    CPU_COUNTERS[Category.BACKWARD]: 0.35e9,
    STARVED_COUNTERS[Category.BACKWARD]: 0.02e9,
}


def start(script: str, *arguments: str, size: int = 2, environment: Mapping[str, str] | None = None) -> list[Any]:
    """Start ranks without a launcher, so that nobody but the runtime ends them."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "WORLD_SIZE": str(size)}
    settings |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(size)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env={**settings, "RANK": str(rank), "LOCAL_RANK": str(rank), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def kills(count: int) -> dict[str, Any]:
    """Kill a random rank of three at a random moment; how long until the others have ended, by themselves and with an error."""
    chance = random.Random(0)  # noqa: S311  no secret
    took, hung, silent = [], 0, 0
    folder = tempfile.mkdtemp()
    for number in range(count):
        timeline = {"HOROVOD_TIMELINE": f"{folder}/{number}.json"} if number % 2 else {}
        processes = start(FOREVER, size=3, environment=timeline)
        for process in processes:
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.5))
        victim = chance.randrange(3)
        os.kill(processes[victim].pid, signal.SIGKILL)
        begun = time.monotonic()
        for rank, process in enumerate(processes):
            try:
                _, said = process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                hung += 1
                process.kill()
                process.communicate()
            else:
                silent += rank != victim and (process.returncode == 0 or f"rank {victim}" not in said)
        took.append(time.monotonic() - begun)
    shutil.rmtree(folder)
    return {
        "kills": count,
        "hung": hung,
        "ended_without_naming_the_rank": silent,
        "median_s_until_all_ended": round(sorted(took)[count // 2], 2),
        "longest_s": round(max(took), 2),
    }


def memory(steps: int) -> dict[str, Any]:
    """Resident memory of each rank after every tenth of the steps, timeline on."""
    with tempfile.TemporaryDirectory() as folder:
        processes = start(COUNTED, str(steps), environment={"HOROVOD_TIMELINE": f"{folder}/t.json"})
        amounts = [json.loads(process.communicate()[0]) for process in processes]
    return {
        "steps": steps,
        "resident_mb_by_tenth": [[round(amount / 1e6, 1) for amount in rank] for rank in amounts],
        "growth_mb_after_the_first_fifth": [round((rank[-1] - rank[1]) / 1e6, 2) for rank in amounts],
    }


def idle(seconds: float) -> dict[str, Any]:
    """Share of a core that an idle rank takes, without and with a timeline."""
    result: dict[str, Any] = {"seconds": seconds}
    with tempfile.TemporaryDirectory() as folder:
        for name, environment in (("off", {}), ("on", {"HOROVOD_TIMELINE": f"{folder}/t.json"})):
            processes = start(IDLE, str(seconds), environment=environment)
            used = [float(process.communicate()[0]) for process in processes]
            result[f"percent_of_a_core_timeline_{name}"] = [round(100 * value / seconds, 3) for value in used]
    return result


def left(_: float) -> dict[str, Any]:
    """Threads of the runtime after shutdown."""
    processes = start(LEFT)
    return {"threads": [process.communicate()[0].strip() for process in processes]}


def week(steps: int) -> dict[str, Any]:
    """A rank that records a week of steps of six seconds under limits, by the recorder itself, as fast as it writes."""
    result: dict[str, Any] = {"steps": steps}
    for name, keep, every in (("sampled", "4MB", "100:5"), ("in_full", "4MB", ""), ("sums", "4MB", "sums")):
        with tempfile.TemporaryDirectory() as folder:
            result[name] = _week(Path(folder) / "t.json", steps, keep, every)
    return result


def _week(path: Path, steps: int, keep: str, every: str) -> dict[str, Any]:
    sampling = {"": None, "sums": NO_STEP}.get(every, Sampling(100, 5))
    header = ShardHeader(
        run_id="5eed", rank=0, size=1, local_rank=0, host="h", boot_id="b", process_id=1, device="cpu",
        clock=ShardClock(origin_ns=0, origin_unix_ns=0),
    )  # fmt: skip
    writer = ShardWriter(path, header, make_format=format_for(sampling), keep=parse_keep(keep))
    writer.start()
    largest, resident, used_s = 0, [], time.process_time()
    for number in range(steps):
        at = number * _STEP_NS
        for begin, end, span, category, lane in _PHASES:
            writer.span(span, category, LANE_TIDS[lane], at + begin * _STEP_NS // 10, at + end * _STEP_NS // 10, None)
        for counter, value in _COUNTERS.items():
            writer.counter(counter, at + 6 * _STEP_NS // 10, value)
        writer.span(STEP, "step", LANE_TIDS[LaneKind.STEPS], at, at + _STEP_NS, {"step": number})
        writer.counter(PROCESS_CPU_COUNTER, at + _STEP_NS, 0.7e9)
        if number % 2000 == 1999:  # a week's records come slower than they are written
            assert writer.flush(60.0)
            largest = max(largest, _size_of(path.parent))
            resident.append(_resident())
    writer.close()
    used_s = time.process_time() - used_s
    first = path.stat().st_size
    trace = open_trace(path, use_cache=False)
    known = {*trace.steps["step"].tolist(), *trace.sums["step"].tolist()}
    return {
        "keep": keep,
        "every": every,
        "largest_mb": round(largest / 1e6, 2),
        "first_file_mb": round(first / 1e6, 2),
        "steps_in_full": len(trace.steps) if trace.meta.knows_order else 0,
        "steps_unknown": steps - len(known),
        "lost": writer.lost,
        "processor_us_a_step": round(used_s / steps * 1e6, 1),
        "resident_mb_after_a_tenth_and_at_the_end": [
            round(resident[len(resident) // 10] / 1e6),
            round(resident[-1] / 1e6),
        ],
    }


def _size_of(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # dropped just now
            total += file.stat().st_size
    return total


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def lost(count: int) -> dict[str, Any]:
    """What `kill -9` takes of a timeline: from the last event in the file to the kill, a span every two milliseconds."""
    chance = random.Random(0)  # noqa: S311  no secret
    missing = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            path = Path(folder) / f"{number}.json"
            process = subprocess.Popen(
                [sys.executable, "-c", RECORDED, str(path)],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=subprocess.PIPE,
            )
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0.5, 1.5))
            killed_ns = time.monotonic_ns()
            process.kill()
            process.wait()
            # Each span is called by its own beginning.
            last_ns = max(map(int, open_trace(path, use_cache=False).spans["name"]))
            missing.append((killed_ns - last_ns) / 1e6)
    return {"kills": count, "median_ms": round(sorted(missing)[count // 2]), "longest_ms": round(max(missing))}


CASES = {
    "kills": (kills, 50),
    "week": (week, 100_800),
    "lost": (lost, 40),
    "memory": (memory, 10_000),
    "idle": (idle, 20.0),
    "left": (left, 0),
}


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, help="only this case")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    results = {}
    for name, (measure, amount) in CASES.items():
        if arguments.only in {None, name}:
            results[name] = measure(amount)  # type: ignore[arg-type]  # each takes its own kind of number
            if not arguments.json:
                print(f"{name}: {results[name]}", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
