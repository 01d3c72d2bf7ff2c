"""The compiled scanner under the sanitizers for undefined behaviour and for addresses."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

LIBRARIES = {"undefined": "libubsan.so", "address": "libasan.so"}

FEED = r"""
import array, importlib.util, sys
spec = importlib.util.spec_from_file_location("_native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
for digits in (*range(1, 25), 100):
    for number in (b"9" * digits, b"-" + b"9" * digits, b"1." + b"9" * digits, b"9" * digits + b".9995"):
        for key in (b"ts", b"dur", b"pid", b"id"):
            event = b'{"ph":"X","name":"\\ud83d\\ude00","%s":%s,"args":{"seq":%s}}' % (key, number, number)
            scanner = native.Scanner(("seq",), ("name",), True)
            for cut in (len(event), len(event) // 2):
                scanner.feed(event + bytes(32), 0, cut, 0, 2**62)
            scanner.finish()
pair = b'{"ph":"X", "name":"a name of sixteen", "ts": 1700000000000000.125, "args": {"seq": 12345678,  "grid": [1, 2], "name": "k"} },\n '
line = pair * 2 + pair.replace(b"name", b"%s")[:-1]
for cut in range(len(line) + 1):
    # As few bytes as there may be behind the end, of another kind than those before it.
    scanner = native.Scanner(("seq",), ("name",), True)
    scanner.feed(line[:cut] + b"9" * 32, 0, cut, 0, 2**62)
    scanner.finish()
with open(sys.argv[2], "w+b", buffering=0) as file:
    file.write(line * 400)
    for block in (1, 61, 4096):
        scanner, buffer, start, end, base = native.Scanner(("seq",), ("name",), True), bytearray(5000), 0, 0, 0
        file.seek(0)
        for _ in range(len(line) * 500 // block):
            status, start, end, base, count = scanner.feed_file(file.fileno(), buffer, start, end, base, 2**62, block, 7)
            scanner.expect(scanner.rows * 3)
            if status or not count:
                break
        columns, _, keys = scanner.finish()
        for memory in (*columns.values(), *keys["seq"][:2]):
            memory.grow(2 * memoryview(memory).nbytes + 8)
for code in "bhilBHI":
    numbers = array.array(code, [0, 3, 1])
    for item in "bhil":
        for size in range(5):
            table, out = array.array(item, range(size)), array.array(item, [9] * 3)
            try:
                native.gather(table, numbers, out)
                native.gather(table[:0], numbers[:0], out[:0])
            except IndexError:
                pass
    for low in (-2, 0, 1):
        for places in range(6):
            try:
                native.first_rows(numbers, low, array.array("i", [-1] * places))
            except IndexError:
                pass
for kinds in "BHI":
    for numbers in "il":
        for known in range(4):
            try:
                native.select(array.array(kinds, [0, 2, 1]), bytes([1] * known), array.array("I", [0, 1, 2, known]),
                              array.array(numbers, range(4)), array.array("I", range(4)), array.array(numbers, range(4)))
            except IndexError:
                pass
print("fed")
"""


@pytest.mark.parametrize("sanitizer", ["undefined", "address"])
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_nothing_overflows_and_nothing_is_read_beyond_the_end(sanitizer: str, tmp_path: Path) -> None:
    """Numbers of any length as times, durations, processes, ids and args; events that are cut at every byte."""
    built = tmp_path / "_native.so"
    include = sysconfig.get_paths()["include"]
    source = REPOSITORY / "timeline" / "scanning" / "native.c"
    flags = ["-g", "-O1", "-fPIC", "-shared", f"-fsanitize={sanitizer}", f"-I{include}"]
    made = subprocess.run(["cc", *flags, str(source), "-o", str(built)], capture_output=True, text=True, check=False)
    library = subprocess.run(
        ["cc", f"-print-file-name={LIBRARIES[sanitizer]}"], capture_output=True, text=True, check=True
    )
    if made.returncode or not Path(library.stdout.strip()).is_absolute():
        pytest.skip("this compiler has no sanitizer")
    environment = {
        **os.environ,
        "LD_PRELOAD": library.stdout.strip(),
        "PYTHONMALLOC": "malloc",  # so that each object has bounds of its own
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    done = subprocess.run(
        [sys.executable, "-c", FEED, built, tmp_path / "events"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "fed\n", done.stderr[-2000:]
    assert "runtime error" not in done.stderr
