"""Looks at the training thread: which line of the user's code it is at."""

import json
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

import pytest

from tlkit.runtime.instrument.code import stacks
from tlkit.runtime.instrument.code.stacks import library_of
from tlkit.runtime.instrument.code.ticker import Tick, can_look
from tlkit.runtime.instrument.code.training import CodeSampler
from tlkit.runtime.instrument.steps import tracker
from tlkit.timeline import Trace, open_trace
from tlkit.timeline.record import recorder

from .doubles import start

#: So many steps of so long: a loaded machine may take a hundred times as many looks away.
STEPS, STEP_S = 100, 0.01


def test_whose_code_a_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toolkit's, a package's, Python's, PyTorch's that compiles, or the user's."""
    packages, standard = sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")

    assert library_of(stacks.__file__) == "tlkit"
    assert library_of(f"{packages}/torch/nn/modules/module.py") == "torch"
    assert library_of(f"{packages}/torch/_tensor_str.py") == "torch._tensor_str"
    assert library_of(f"{packages}/torch/distributed/fsdp/_fully_shard/_fsdp_state.py") == "torch.distributed"
    assert library_of(f"{packages}/six.py") == "six"
    assert library_of("/usr/lib/python3/dist-packages/numpy/core/fromnumeric.py") == "numpy"
    assert library_of(f"{standard}/json/decoder.py") == "json"
    assert library_of(f"{standard}/random.py") == "random"
    assert library_of("<frozen importlib._bootstrap>") == "python"
    assert library_of("/home/somebody/train.py") == ""
    assert library_of("/tmp/ipykernel_7/1234.py") == ""
    assert library_of("<ipython-input-3-abc>") == ""
    assert library_of("/tmp/torchinductor_somebody/sq/csqmtuosjxfs.py") == "torch"
    assert library_of("<eval_with_key>.7 from /home/somebody/train.py:3 in forward") == "torch"
    assert library_of("/data/compiled/sq/csqmtuosjxfs.py") == ""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/data/compiled/")
    assert library_of("/data/compiled/sq/csqmtuosjxfs.py") == "torch"


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Path]:
    """Where the calling thread, which trains, is recorded to."""
    tracker.forget()
    start(tmp_path / "t.json")
    try:
        yield tmp_path / "t.json"
    finally:
        recorder.stop_timeline()
        tracker.forget()


def busy() -> None:
    """Python code of the user's."""
    until = time.monotonic() + STEP_S
    while time.monotonic() < until:
        pass


def waiting() -> None:
    """A call of a library that waits."""
    threading.Event().wait(STEP_S)


def looks_of(timeline: Path) -> Trace:
    recorder.stop_timeline()
    return open_trace(timeline)


def train(*functions: object, steps: int = STEPS) -> None:
    optimizer = object()
    sampler = CodeSampler(often_s=0.002)
    sampler.start()
    for _ in range(steps):
        tracker.touch()
        for function in functions:
            assert callable(function)
            function()
        tracker.optimizer_stepped(optimizer)
    sampler.stop()


def test_the_line_and_what_it_calls_are_recorded(timeline: Path) -> None:
    """With its text, on a lane of its own."""
    train(busy, waiting)
    trace = looks_of(timeline)
    spans = trace.spans[trace.spans["lane_kind"] == "code"]
    names = [str(name) for name in spans["name"]]
    first = busy.__code__.co_firstlineno
    of_loop = [name for name in names if name.startswith("test_code_samples.py:") and name.endswith(" busy")]
    texts = {json.loads(trace.raw_args[row]).get("text") for row in spans["args_row"] if row >= 0}

    assert of_loop
    assert all(first < int(name.split(":")[1].split()[0]) < first + 5 for name in of_loop)
    assert any(name.endswith(" waiting (in threading)") for name in names)
    assert "threading.Event().wait(STEP_S)" in texts
    assert trace.steps["start_ns"].iloc[2] <= spans["start_ns"].iloc[0], "the first steps are not as the others"


class Batches:
    """Gives a batch after some work, as people write it who have no data loader."""

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> int:
        busy()
        return 1


def batches() -> Generator[int]:
    while True:
        busy()
        yield 1


def through(source: Iterable[int]) -> Generator[int]:
    """As a progress bar."""
    yield from source


def get_batch() -> None:
    busy()


def spent() -> bool:
    busy()
    return True


def log_values() -> None:
    """A loop of its own, which makes no batch."""
    assert any(spent() for _ in range(1))


def evaluate() -> None:
    get_batch()


@pytest.mark.parametrize(
    ("source", "called", "is_input"),
    [
        (batches, None, True),
        (Batches, None, True),
        (lambda: through(batches()), None, True),
        (lambda: iter(int, 1), get_batch, True),
        (lambda: iter(int, 1), log_values, False),
        (lambda: iter(int, 1), evaluate, False),
        (lambda: iter(int, 1), busy, False),
    ],
)
def test_batches_that_the_loop_makes_are_told_from_its_other_code(
    timeline: Path, source: Callable[[], Iterable[int]], called: Callable[[], None] | None, *, is_input: bool
) -> None:
    """By what the loop has called: an iterator, or a function of such a name."""
    optimizer = object()
    sampler = CodeSampler(often_s=0.002)
    sampler.start()
    for _, _ in zip(range(STEPS), source(), strict=False):
        tracker.touch()
        if called is not None:
            called()
        tracker.optimizer_stepped(optimizer)
    sampler.stop()
    trace = looks_of(timeline)
    looks = trace.spans[(trace.spans["lane_kind"] == "code") & trace.spans["name"].str.contains(" busy")]

    assert len(looks)
    assert set(looks["category"]) == {"data" if is_input else "other"}


def test_looks_leave_nothing_alive(timeline: Path) -> None:
    """A function's variables go with it, though somebody has looked at its frame."""
    import weakref

    class Large:
        pass

    kept: list[weakref.ref[Large]] = []

    def holding() -> None:
        mine = Large()
        kept.append(weakref.ref(mine))
        busy()

    train(holding, steps=20)

    assert looks_of(timeline).meta.ranks == (0,)
    assert not any(one() for one in kept)


def test_nobody_is_looked_at_without_a_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to write it into."""
    calls: list[int] = []

    def look(self: CodeSampler, tick: Tick) -> None:
        calls.append(0)

    monkeypatch.setattr(CodeSampler, "_look", look)
    tracker.forget()
    train(busy, steps=20)

    assert not calls


def test_a_look_that_fails_is_the_last_one(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training goes on."""
    calls: list[int] = []

    def fail(self: CodeSampler, tick: Tick) -> None:
        calls.append(0)
        raise RuntimeError("a stack of another making")

    monkeypatch.setattr(CodeSampler, "_look", fail)
    train(busy)

    assert calls == [0]
    assert len(looks_of(timeline).steps) == STEPS


#: Python's collector runs at each allocation, and lets another thread run; the thread that is looked at has ever other frames.
_EVER_OTHER_FRAMES = """
import gc, json, re, sys, threading, time
from tlkit.runtime.instrument.code.stacks import Stacks
from tlkit.runtime.instrument.code.ticker import stack_of

def nested(count, *args, **named):
    return [] if count <= 0 else nested(count - 1, count, 2**33 + 1, *args[:5], more=named)

def look():
    stacks = Stacks()
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        stacks.look(stack_of(main), within=look.__code__)
        time.sleep(0)
    is_over.set()

main, is_over = threading.get_ident(), threading.Event()
gc.callbacks.append(lambda *_: time.sleep(0))
gc.set_threshold(1)
sys.setswitchinterval(1e-5)
threading.Thread(target=look).start()
while not is_over.is_set():
    re.purge()
    re.compile("(a|b)*c[x-z]{2,5}(?P<n>q+)")
    json.dumps({"a": [1, {"b": 3.5}]}, indent=2)
    nested(25)
"""


@pytest.mark.skipif(not can_look(), reason="nobody looks without the part in C")
def test_a_look_at_frames_that_go_on_does_not_crash() -> None:
    """A frame whose thread runs on leads to memory that is another frame's: walked in Python, two of three runs crashed."""
    script = [sys.executable, "-c", _EVER_OTHER_FRAMES]
    ended = subprocess.run(script, check=False, capture_output=True, text=True, timeout=120)

    assert ended.returncode == 0, ended.stderr
