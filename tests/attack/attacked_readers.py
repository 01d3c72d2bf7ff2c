"""Opens and analyses damaged files, one after the other, and prints what became of each; started by test_readers.py.

`python -m tests.attack.attacked_readers FOLDER FIRST COUNT`
"""

import faulthandler
import json
import re
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.attack.mutations import corpus, mutate
from tlkit.collector import analyze
from tlkit.timeline import TlkitError, open_trace
from tlkit.timeline.errors import ReaderError

#: A file that takes more processor time than this hangs, or one that nothing comes of for as long as that: how many others want
#: the processor is not the file's fault.
MAX_PROCESSOR_S = 20
MAX_WAIT_S = 300


def peak_nbytes() -> int:
    """The most memory that this process has had since `forget_peak`."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def place_of(error: BaseException) -> str:
    """What failed where, of the error that began it."""
    while error.__cause__ is not None:
        error = error.__cause__
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:100]} ({Path(frame.filename).name}:{frame.lineno})"


def attack(path: Path) -> str:
    """`read`, `refused`, or the place where something failed that nobody has foreseen."""
    try:
        analyze(open_trace(path, use_cache=False))
    except ReaderError as error:
        return place_of(error)
    except TlkitError:
        return "refused"
    except Exception as error:
        return place_of(error)
    return "read"


def main(folder: Path, first: int, count: int) -> None:
    """Attack with the mutations of these numbers."""
    # Says where it hangs, and ends.
    faulthandler.register(signal.SIGPROF, chain=True)
    files = corpus(folder)
    outcomes: Counter[str] = Counter()
    faults: list[dict[str, object]] = []
    slowest_s = largest_ratio = 0.0
    for number in range(first, first + count):
        name, data, nbytes = mutate(number, files)
        (folder / "at").write_text(str(number), encoding="ascii")
        path = folder / name
        path.write_bytes(data)
        faulthandler.dump_traceback_later(MAX_WAIT_S, exit=True)
        signal.setitimer(signal.ITIMER_PROF, MAX_PROCESSOR_S)
        forget_peak()
        begun = time.process_time()
        outcome = attack(path)
        slowest_s = max(slowest_s, time.process_time() - begun)
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        path.unlink()
        ratio = peak_nbytes() / (3 * nbytes + 300e6)
        largest_ratio = max(largest_ratio, ratio)
        if ratio > 1:
            outcome = f"{peak_nbytes() / 1e6:.0f} MB for {nbytes} bytes"
        outcomes[outcome if outcome in {"read", "refused"} else "fault"] += 1
        if outcome not in {"read", "refused"}:
            faults.append({"number": number, "name": name, "outcome": outcome})
    sys.stdout.write(
        json.dumps({"outcomes": outcomes, "faults": faults, "slowest_s": slowest_s, "largest_ratio": largest_ratio})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
