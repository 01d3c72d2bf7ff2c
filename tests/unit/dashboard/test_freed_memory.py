"""Memory goes back when nobody asks any more."""

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tlkit.dashboard import freed_memory
from tlkit.dashboard.freed_memory import WhenIdle, give_back


def test_it_is_given_back_once_after_the_last_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while questions come; and again after later ones."""
    given, times = threading.Semaphore(0), []

    def count() -> None:
        times.append(1)
        given.release()

    monkeypatch.setattr(freed_memory, "give_back", count)
    patient = WhenIdle(3600)
    for _ in range(5):
        patient.touch()
    assert times == []
    idle = WhenIdle(0.01)
    for rounds in (1, 2):
        for _ in range(5):
            idle.touch()
        assert given.acquire(timeout=60)
        assert len(times) >= rounds


def test_giving_back_can_be_repeated() -> None:
    give_back()
    give_back()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="heaps of threads are glibc's")
@pytest.mark.parametrize("is_shared", [False, True])
def test_threads_share_heaps(is_shared: bool, tmp_path: Path) -> None:
    """Eight threads that allocate at the same time."""
    told = tmp_path / "heaps.xml"
    program = f"""
import ctypes, threading
from tlkit.dashboard.freed_memory import share_heaps
if {is_shared}:
    share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier(9)
def work():
    libc.malloc(1000)
    together.wait()
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
together.wait()
file = ctypes.c_void_p(libc.fopen({str(told)!r}.encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
together.wait()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    heaps = told.read_text().count("<heap nr=")

    assert heaps <= 2 if is_shared else heaps > 2
