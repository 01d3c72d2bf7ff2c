"""Reruns every table of docs/performance.md, and the one of docs/diagnosis.md.

    python benchmarks/everything.py                  # all; more than an hour on two idle cores
    python benchmarks/everything.py --quick          # small inputs: whether everything runs, not what it costs
    python benchmarks/everything.py --only load ranges

What each benchmark prints goes to build/bench/NAME.txt as well, with the machine at its head.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
OUT = REPOSITORY / "build" / "bench"
HERE = Path(__file__).resolve().parent

Arguments = Callable[[Path, bool], list[str]]


def profiles(folder: Path, ranks: int, megabytes: float) -> str:
    """Made-up profiles of so many ranks."""
    target = folder / f"ranks{ranks}"
    target.mkdir()
    for rank in range(ranks):
        script = [sys.executable, str(HERE / "kineto_like.py"), "--rank", str(rank), str(megabytes)]
        subprocess.run([*script, str(target / f"rank{rank}.json")], check=True, stdout=subprocess.DEVNULL)
    return str(target)


def timeline(folder: Path, steps: int) -> list[str]:
    """A timeline of two ranks: about 1,500 events a step and rank."""
    path = folder / "t.json"
    command = [sys.executable, "-m", "tlkit.runtime.launch.cli", "-np", "2", sys.executable]
    script = [str(REPOSITORY / "samples" / "train_transformer.py"), "--steps", str(steps)]
    environment = {**os.environ, "HOROVOD_TIMELINE": str(path), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *script], env=environment, check=True, stdout=subprocess.DEVNULL)
    return [str(path), str(path.with_name("t.rank1.json"))]


BENCHMARKS: dict[str, Arguments] = {
    "recording": lambda _, quick: ["--pairs", "2", "--steps", "3"] if quick else ["--pairs", "50", "--steps", "6"],
    "spans": lambda _, __: [],
    "instrumented": lambda _, __: [],
    "step_time": lambda _, __: [],
    "collectives": lambda _, __: [],
    "control_plane": lambda _, __: [],
    "protocol": lambda _, quick: ["--seeds", "200"] if quick else [],
    "endurance": lambda _, quick: ["--only", "idle"] if quick else [],
    "load": lambda _, quick: ["--megabytes", "20", "--rounds", "1"] if quick else [],
    "analysis": lambda folder, quick: [profiles(folder, 8, 2 if quick else 31)],
    "dashboard": lambda folder, quick: [profiles(folder, 4 if quick else 64, 5 if quick else 55)],
    "collecting": lambda folder, quick: timeline(folder, 5 if quick else 340),
    "acknowledging": lambda _, quick: ["--rounds", "1"] if quick else [],
    "attack": lambda _, quick: ["--quick"] if quick else [],
    "ranges": lambda _, __: [],
    "diagnosis/run": lambda _, quick: ["--only", "slow forward on rank 1"] if quick else [],
}


def machine() -> str:
    """One line about where this ran."""
    model = next((line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "unknown")
    return f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def run(name: str, *, quick: bool) -> int:
    """Run a benchmark, show what it prints, and keep it; returns its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = BENCHMARKS[name](Path(folder), quick)
        began = time.monotonic()
        command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(f"== {name}: {time.monotonic() - began:.0f} s\n{ended.stdout}", flush=True)
    (OUT / f"{name.replace('/', '-')}.txt").write_text(f"{machine()}\n\n{ended.stdout}", encoding="utf-8")
    return ended.returncode


def main() -> None:
    """Run them one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    failed = [name for name in arguments.only if run(name, quick=arguments.quick)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
