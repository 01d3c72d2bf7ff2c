"""Damaged traces: each is read or refused with one of our errors, within time and memory.

A hundred in every run; `TLKIT_FUZZ=100` makes it 10,000, which takes most of an hour on two cores.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fuzzing import examples

REPOSITORY = Path(__file__).resolve().parents[2]
COUNT = examples(100)
#: The number of the first one: a long run can be done in pieces.
FIRST = int(os.environ.get("TLKIT_FUZZ_FIRST", "0"))
#: Files that one process attacks.
BATCH = 50
WORKERS = int(os.environ.get("TLKIT_FUZZ_WORKERS", "2"))


def attack(folder: Path, first: int) -> dict[str, Any]:
    """What became of a batch; a process that dies or hangs names the file at which it did."""
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.attack.attacked_readers",
        str(folder),
        str(first),
        str(min(BATCH, FIRST + COUNT - first)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    at = (folder / "at").read_text(encoding="ascii") if (folder / "at").exists() else "none"
    fault = {"number": at, "outcome": f"ended with {done.returncode}: {done.stderr[-1500:]}"}
    return {"outcomes": {"fault": 1}, "faults": [fault], "slowest_s": 0.0, "largest_ratio": 0.0}


@pytest.mark.timeout(7200)
def test_damaged_traces_are_read_or_refused(tmp_path: Path) -> None:
    """No exception of Python's own, no file that takes 20 s of processor time, no more memory than three times the file and 300 MB."""
    with ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(lambda first: attack(tmp_path / str(first), first), range(FIRST, FIRST + COUNT, BATCH)))
    outcomes: Counter[str] = Counter()
    for result in results:
        outcomes.update(result["outcomes"])
    faults = [fault for result in results for fault in result["faults"]]
    slowest_s = max(result["slowest_s"] for result in results)
    ratio = max(result["largest_ratio"] for result in results)
    sys.stdout.write(
        f"{dict(outcomes)}; slowest {slowest_s:.1f} s of processor time; memory at most {ratio:.0%} of the bound\n"
    )
    assert faults == []
    assert outcomes["read"] > COUNT / 5
    assert outcomes["refused"] > 0
