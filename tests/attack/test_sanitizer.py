"""The compiled scanner under the sanitizer for undefined behaviour."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

FEED = r"""
import importlib.util, sys
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
print("fed")
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_numbers_of_any_length_overflow_nothing(tmp_path: Path) -> None:
    """Times, durations, processes, ids and args."""
    built = tmp_path / "_native.so"
    include = sysconfig.get_paths()["include"]
    source = REPOSITORY / "timeline" / "scanning" / "native.c"
    flags = ["-g", "-O1", "-fPIC", "-shared", "-fsanitize=undefined", f"-I{include}"]
    made = subprocess.run(["cc", *flags, str(source), "-o", str(built)], capture_output=True, text=True, check=False)
    library = subprocess.run(["cc", "-print-file-name=libubsan.so"], capture_output=True, text=True, check=True)
    if made.returncode or not Path(library.stdout.strip()).is_absolute():
        pytest.skip("this compiler has no sanitizer")
    environment = {**os.environ, "LD_PRELOAD": library.stdout.strip()}
    done = subprocess.run(
        [sys.executable, "-c", FEED, built], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "fed\n"
    assert "runtime error" not in done.stderr
