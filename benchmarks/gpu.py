"""Everything that takes a GPU: whether what is recorded of one is right, and what recording costs there.

    python benchmarks/gpu.py                      # all pieces, half an hour at most on one GPU; writes docs/gpu.md
    python benchmarks/gpu.py --only clocks graphs # some of them, each in less than ten minutes
    python benchmarks/gpu.py --dry                # leaves docs/gpu.md alone

Each piece is a file of tests/gpu and can be run by pytest as well.  Without a device one line says so.
"""

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_checks.document import Row, replaced, state, table

REPOSITORY = Path(__file__).resolve().parent.parent

DOCUMENT = REPOSITORY / "docs" / "gpu.md"

#: The pieces, and how long each may take (s); together less than half an hour.
PIECES = {"clocks": 300, "one_rank": 420, "graphs": 240, "exposure": 240, "two_ranks": 420, "nvtx": 150}

_ASK = """
import torch
if torch.cuda.is_available():
    driver = ""
    try:
        import pynvml
        pynvml.nvmlInit()
        driver = f", driver {pynvml.nvmlSystemGetDriverVersion()}"
    except Exception:
        pass
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}{driver}")
"""


def device() -> str:
    """One line about the device and what drives it, "" without one; asked in a process that holds no memory afterwards."""
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False, timeout=120)
    return asked.stdout.strip()


def run(piece: str, limit_s: float, folder: Path) -> tuple[str, dict[str, list[Row]]]:
    """Run the tests of a piece; how they ended, and the rows of their tables."""
    notes = folder / f"{piece}.jsonl"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/gpu/test_{piece}.py"]
    environment = {**os.environ, "TLKIT_GPU_NOTES": str(notes)}
    try:
        ended = subprocess.run(command, cwd=REPOSITORY, env=environment, timeout=limit_s, check=False)
        outcome = "passed" if ended.returncode == 0 else f"pytest ended with {ended.returncode}"
    except subprocess.TimeoutExpired:
        outcome = f"not done after {limit_s:.0f} s"
    return outcome, read_notes(notes)


def read_notes(path: Path) -> dict[str, list[Row]]:
    """Rows by table, as the tests have noted them; a line that a killed test left unfinished is left out."""
    rows: dict[str, list[Row]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            noted = json.loads(line)
        except ValueError:
            continue
        rows.setdefault(noted["table"], []).append(noted["row"])
    return rows


def written(text: str, machine: str, outcomes: dict[str, str], tables: dict[str, list[Row]]) -> str:
    """The document with what this run has found; tables of pieces that were not run stay."""
    text = replaced(text, "state", state(machine, outcomes))
    for name, rows in tables.items():
        text = replaced(text, name, table(rows))
    return text


def main() -> int:
    """Run pieces one after the other; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PIECES), default=list(PIECES), help="these pieces")
    parser.add_argument("--dry", action="store_true", help="leave docs/gpu.md alone")
    arguments = parser.parse_args()
    name = device()
    if not name:
        print("no CUDA device here: nothing was run (docs/gpu.md says what would be)")
        return 0
    outcomes: dict[str, str] = {}
    tables: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for piece in arguments.only:
            outcomes[piece], rows = run(piece, PIECES[piece], Path(folder))
            tables |= rows
            print(f"{piece}: {outcomes[piece]}", flush=True)
    if not arguments.dry:
        machine = f"{name}, {dt.datetime.now(dt.UTC):%Y-%m-%d}"
        DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), machine, outcomes, tables), "utf-8")
    return int(any(outcome != "passed" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
