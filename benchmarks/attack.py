"""Attacks the servers for the figures of docs/security.md: kills, crowds, held connections, full disks, damaged requests.

    python benchmarks/attack.py                      # about an hour on two idle cores
    python benchmarks/attack.py --quick              # as in `make test`
    python benchmarks/attack.py -k kills             # some of them, as pytest takes it
    python benchmarks/attack.py --mutations 10000    # damaged traces, and nothing else; --workers 1 leaves a core to others
    python benchmarks/attack.py --mutations 1000 --first 3000   # a piece of the same

Lines that it prints beside pytest's are the figures.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the tests, with what they report; returns pytest's status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-k", default="", metavar="WORDS")
    parser.add_argument("--mutations", type=int, default=0, metavar="N", help="damage N traces, in hundreds")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first of these")
    parser.add_argument("--workers", type=int, default=2, help="processes that read damaged traces")
    arguments = parser.parse_args()
    environment = {**os.environ, "TLKIT_ATTACK": "short" if arguments.quick else "long"}
    environment["TLKIT_FUZZ_WORKERS"] = str(arguments.workers)
    where = "tests/attack"
    if arguments.mutations:
        environment["TLKIT_FUZZ"] = str(max(arguments.mutations // 100, 1))
        environment["TLKIT_FUZZ_FIRST"] = str(arguments.first)
        where = "tests/attack/test_readers.py"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--tb=short", where, "-k", arguments.k]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
