"""What it costs to read a large trace: from JSON to finished tables, against the floors of JSON libraries and against a peer.

    python benchmarks/load.py                         # a made-up Kineto trace of 200 MB
    python benchmarks/load.py --megabytes 1000
    python benchmarks/load.py mine.json --rounds 5 --json

Every reader runs in a process of its own, in turn with the others.  A reader whose library is not installed is left out:
`orjson` and `traceinsight` (Holistic Trace Analysis) are not among the toolkit's own dependencies; --python names an interpreter
that has them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent

_MEASURE = """
import gc, json, os, resource, sys, time
path = sys.argv[1]
{setup}
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begun, cpu = time.perf_counter(), time.process_time()
{work}
wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps(dict(wall_s=wall, cpu_s=cpu, rss_mb=peak / 1024, base_mb=base / 1024, result=result)))
"""
_OPEN = ("from tlkit.timeline import open_trace", "trace = open_trace(path)\nresult = len(trace.spans)")
_READ = "with open(path, 'rb') as file:\n    data = file.read()\n"
_STRUCT = """
import msgspec
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"")
class File(msgspec.Struct, gc=False):
    traceEvents: list[Event]
gc.disable()
"""
_HTA = """
import logging, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
try:
    from hta.trace_analysis import TraceAnalysis
except ImportError:
    from traceinsight.trace_analysis import TraceAnalysis
"""
#: Name: setup, work, environment, whether the other interpreter runs it.
READERS: dict[str, tuple[str, str, Mapping[str, str], bool]] = {
    "tlkit": (*_OPEN, {"TLKIT_CACHE_DIR": ""}, False),
    "tlkit, one thread": (*_OPEN, {"TLKIT_CACHE_DIR": "", "ONE_CORE": "1"}, False),
    "tlkit, no compiler": (*_OPEN, {"TLKIT_CACHE_DIR": "", "TLKIT_PORTABLE_SCANNER": "1"}, False),
    "tlkit, kept": (*_OPEN, {}, False),
    "msgspec structs": (
        _STRUCT,
        f"{_READ}events = msgspec.json.decode(data, type=File)\nresult = len(events.traceEvents)",
        {},
        False,
    ),
    "orjson": (
        "import orjson\ngc.disable()",
        f"{_READ}result = len(orjson.loads(data)['traceEvents'])",
        {},
        True,
    ),
    "json": ("gc.disable()", "with open(path) as file:\n    result = len(json.load(file)['traceEvents'])", {}, False),
    "HTA": (_HTA, "analysis = TraceAnalysis(trace_files={0: path})\nresult = len(analysis.t.get_trace(0))", {}, True),
}


def run(name: str, path: Path, python: str, cache: str) -> dict[str, Any] | None:
    """One reader in a process of its own; None if it does not run."""
    setup, work, environment, elsewhere = READERS[name]
    settings = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TLKIT_CACHE_DIR": cache, **environment}
    command = [python if elsewhere else sys.executable, "-c", _MEASURE.format(setup=setup, work=work), str(path)]
    if environment.get("ONE_CORE"):
        command = ["taskset", "-c", "0", *command]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        if "ModuleNotFoundError" not in done.stderr:
            print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="a trace; by default one is made up")
    parser.add_argument("--megabytes", type=float, default=200, help="size of the made-up trace (default 200)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each reader (default 5)")
    parser.add_argument("--only", action="append", choices=READERS, help="this reader; may be repeated")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has orjson and traceinsight")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.trace
        if path is None:
            sys.path.insert(0, str(Path(__file__).parent))
            from kineto_like import write  # noqa: PLC0415  only if one is to be made

            path = Path(folder) / "made-up.json"
            write(path, round(arguments.megabytes * 1e6))
        megabytes = path.stat().st_size / 1e6
        names = arguments.only or list(READERS)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        run("tlkit, kept", path, arguments.python, f"{folder}/cache")  # fills the cache
        for number in range(arguments.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if found[name] or number == 0:
                    measured = run(name, path, arguments.python, f"{folder}/cache")
                    if measured is not None:
                        found[name].append(measured)
    rows = []
    for name, results in found.items():
        if results:
            wall, cpu, rss, base = (
                statistics.median(result[key] for result in results) for key in ("wall_s", "cpu_s", "rss_mb", "base_mb")
            )
            rows.append(
                {
                    "reader": name,
                    "wall_s": round(wall, 3),
                    "wall_s_range": [round(fold(result["wall_s"] for result in results), 3) for fold in (min, max)],
                    "cpu_s": round(cpu, 3),
                    "mb_per_cpu_s": round(megabytes / cpu),
                    "rss_over_file": round(rss * 1.048576 / megabytes, 2),
                    "rss_over_file_without_imports": round((rss - base) * 1.048576 / megabytes, 2),
                    "rows": results[0]["result"],
                }
            )
    if arguments.json:
        print(json.dumps({"megabytes": megabytes, "rounds": arguments.rounds, "rows": rows}, indent=2))
        return
    print(f"{megabytes:.0f} MB, medians of {arguments.rounds} runs in turn")
    print(
        f"{'':20} {'wall s':>8} {'(range)':>17} {'CPU s':>8} {'MB/CPU s':>9} {'RSS x':>6} {'less imports':>12} {'rows':>10}"
    )
    for row in rows:
        low, high = row["wall_s_range"]
        print(
            f"{row['reader']:20} {row['wall_s']:8.2f} {f'({low:.2f} to {high:.2f})':>17} {row['cpu_s']:8.2f} "
            f"{row['mb_per_cpu_s']:9} {row['rss_over_file']:6} {row['rss_over_file_without_imports']:12} {row['rows']:10}"
        )


if __name__ == "__main__":
    main()
