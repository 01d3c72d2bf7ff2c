"""What an NVTX range costs: without a tool, with a small one, under Nsight Systems.

    python benchmarks/ranges.py          # ns a range, medians of five; nsys only where it is installed

Each is a span of the recorder (`recorder.begin` and `recorder.end`) with the timeline off, next to nvtx's own push and pop.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).resolve().parents[1] / "tests" / "integration" / "nvtx_injection.c"
MEASURE = """
import json, time
import nvtx
from tlkit.timeline.record import recorder
from tlkit.timeline.vocabulary import Category

recorder.mark_training_thread()
recorder.start_nvtx()
domain = nvtx.get_domain("other")
attributes = domain.get_event_attributes(message="range")
COUNT = 20_000

def of_recorder():
    for _ in range(COUNT):
        recorder.end(recorder.begin(Category.FORWARD, "FORWARD"))

def of_nvtx():
    for _ in range(COUNT):
        domain.push_range(attributes)
        domain.pop_range()

def best(work):
    taken = []
    for _ in range(5):
        began = time.perf_counter_ns()
        work()
        taken.append((time.perf_counter_ns() - began) / COUNT)
    return sorted(taken)[2]

print("NS", json.dumps([best(of_recorder), best(of_nvtx)]))
"""


def measure(environment: dict[str, str], *prefix: str) -> tuple[float, float]:
    """Nanoseconds of a range through the recorder, and of nvtx's own: medians of three processes."""
    found = []
    for _ in range(3):
        ended = subprocess.run(
            [*prefix, sys.executable, "-c", MEASURE],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        line = next(line for line in ended.stdout.splitlines() if line.startswith("NS "))
        found.append([float(part) for part in line.removeprefix("NS [").rstrip("]").split(",")])
    return statistics.median(row[0] for row in found), statistics.median(row[1] for row in found)


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [("no tool", measure({}))]
        if shutil.which("gcc"):
            library = str(Path(folder) / "injection.so")
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, str(STUB), "-lpthread"], check=True)
            noted = str(Path(folder) / "noted")
            rows.append(
                (
                    "small tool that notes each range",
                    measure({"NVTX_INJECTION64_PATH": library, "NVTX_TEST_LOG": noted}),
                )
            )
        if shutil.which("nsys"):
            command = [
                "nsys",
                "profile",
                "-t",
                "nvtx",
                "--sample=none",
                "--cpuctxsw=none",
                "-f",
                "true",
                "-o",
                f"{folder}/report",
            ]
            rows.append(("Nsight Systems", measure({}, *command)))
    print(f"{'':34}{'a span, ns':>12}{'nvtx push and pop, ns':>24}")
    for name, (ours, theirs) in rows:
        print(f"{name:34}{ours:12.0f}{theirs:24.0f}")


if __name__ == "__main__":
    main()
