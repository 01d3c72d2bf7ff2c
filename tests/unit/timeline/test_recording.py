"""The recorder in C and the one in Python write the same bytes."""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlkit.timeline.record.horovod_format import HorovodFormat
from tlkit.timeline.record.queue import Call, load_compiled, portable
from tlkit.timeline.record.shard_format import ShardClock, ShardFormat, ShardHeader
from tlkit.timeline.vocabulary import CPU_COUNTERS, LANE_TIDS, STARVED_COUNTERS, Category, LaneKind

compiled = load_compiled()
EXAMPLES = 40 * int(os.environ.get("TLKIT_FUZZ", "1"))
MOST = 1 << 28

pytestmark = pytest.mark.skipif(compiled is None, reason="the recorder in C is not compiled")


def header(origin_ns: int = 0, rank: int = 0) -> ShardHeader:
    """A header whose `ts` 0 is at `origin_ns`."""
    clock = ShardClock(origin_ns=origin_ns, origin_unix_ns=0)
    return ShardHeader(
        run_id="r", rank=rank, size=2, local_rank=0, host="h", boot_id="b", process_id=1, device="cpu", clock=clock
    )  # fmt: skip


#: Around what fits into 53 bits, where Python's quotient stops being exact, and into 63.
times = st.one_of(
    st.integers(-5_000, 10**13),
    st.integers(2**52 - 3000, 2**53 + 3000),
    st.integers(-(2**62) - 5, 2**62 + 5),
    st.sampled_from([0, 2**63 - 1, -(2**63), 2**63, 10**30]),
)
names = st.one_of(
    st.sampled_from(["FORWARD", "ALLREDUCE", "allreduce.layer.weight"]),
    st.text(max_size=12),
    st.sampled_from(['a"b\\c\n%s%d\x00\u202e', "\ud800", "größe", ""]),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("\udfff")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)
args = st.one_of(
    st.none(),
    st.dictionaries(names, values, max_size=4),
    st.just({"set": {1}}),
    st.just({1: 2}),
    st.just({"object": Path("x")}),
)
calls = st.sampled_from(
    [Call("", blocking=False), Call("gradient", blocking=False), Call("user", blocking=True, where='a"b.py:1')]
)
categories = st.one_of(st.sampled_from(list(Category)), st.sampled_from(["step", "", "\ud800"]))

spans = st.tuples(st.just("span"), names, categories, st.sampled_from([0, 1, 3, 17]), times, times, args)
counters = st.tuples(
    st.just("counter"), names, times, st.one_of(st.integers(), st.floats(), st.booleans(), st.integers(-9, 9))
)
tensors = st.tuples(
    names,
    st.sampled_from(["allreduce", "allgather", "join", "barrier"]),
    st.integers(0, 2**40),
    st.sampled_from(["float32", "\ud800"]),
    st.lists(st.integers(0, 9), max_size=3),
    times.filter(lambda at_ns: abs(at_ns) < 2**63),
    st.booleans(),
    calls,
    st.booleans(),
)
lives = st.tuples(
    st.just("lives"),
    st.lists(tensors, min_size=1, max_size=4),
    st.sampled_from([0, 3]),
    st.integers(-1, 2**40),
    st.tuples(times, times, times),
)
others = st.tuples(st.just("instant"), names, times)
records = st.lists(st.one_of(spans, counters, lives, others), max_size=12)


def feed(queue: Any, life: Any, form: Any, recorded: list[Any]) -> None:
    """Append made-up records to a queue."""
    for number, (kind, *rest) in enumerate(recorded):
        if kind == "span":
            queue.span(*rest)
        elif kind == "counter":
            queue.counter(*rest)
        elif kind == "instant":
            queue.call(form.instant, *rest)
        else:
            made = []
            for position, (name, of_kind, nbytes, dtype, shape, at_ns, flow, call, claimed) in enumerate(rest[0]):
                one = life(100 * number + position, name, of_kind, nbytes, dtype, shape, at_ns, flow, call)
                if claimed:
                    one.claim()
                made.append(one)
            queue.lives(made, *rest[1:])


@pytest.mark.parametrize("make_format", [ShardFormat, HorovodFormat])
@settings(max_examples=EXAMPLES, deadline=None)
@given(recorded=st.lists(records, min_size=1, max_size=3), origin_ns=times, rank=st.sampled_from([0, 7, 12345]))
def test_both_write_the_same_bytes(
    make_format: Callable[[ShardHeader], Any], recorded: list[list[Any]], origin_ns: int, rank: int
) -> None:
    """Whatever is recorded, however often it is taken; and they leave out as many records."""
    taken: list[list[bytes]] = []
    lost = []
    for module, life in ((portable, portable.TensorLife), (compiled, compiled.TensorLife)):
        form = make_format(header(origin_ns, rank))
        queue = module.Queue(form, MOST)
        taken.append([])
        for part in recorded:
            feed(queue, life, form, part)
            taken[-1].append(queue.take())
        lost.append(queue.lost)

    assert taken[0] == taken[1]
    assert lost[0] == lost[1]


@settings(max_examples=EXAMPLES, deadline=None)
@given(recorded=records)
def test_a_file_gets_what_is_taken(tmp_path_factory: pytest.TempPathFactory, recorded: list[Any]) -> None:
    """`write` says how much it was."""
    path = tmp_path_factory.mktemp("written") / "lines"
    form = ShardFormat(header())
    expected = portable.Queue(form, MOST)
    feed(expected, portable.TensorLife, form, recorded)
    lines = expected.take()
    queue = compiled.Queue(form, MOST)
    feed(queue, compiled.TensorLife, form, recorded)
    with path.open("wb") as file:
        told = queue.write(file.fileno())

    assert told == (len(lines), lines.count(b"\n"))
    assert path.read_bytes() == lines


class Request:
    """What the runtime says of a tensor."""

    def __init__(self, name: str, kind: str, shape: tuple[int, ...]) -> None:
        self.name, self.kind, self.dtype, self.shape, self.process_set = name, kind, "float32", shape, 0


class Buffer:
    """A tensor of float32."""

    def __init__(self, request: Request) -> None:
        self.nbytes = 4 * sum(request.shape)


class Handle:
    """Of tensors that were submitted together."""

    __slots__ = ("call", "flow")

    def __init__(self, call: Call | None, *, flow: bool) -> None:
        self.call, self.flow = call, flow


class Entry:
    """A tensor that was submitted."""

    def __init__(self, request: Request, handle: Handle, submitted_ns: int) -> None:
        self.request, self.tensor, self.handle, self.submitted_ns = request, Buffer(request), handle, submitted_ns
        self.life: Any = None


class SlottedEntry(Entry):
    """As the runtime's are, whose attributes are found faster."""

    __slots__ = ("handle", "life", "request", "submitted_ns", "tensor")


requests = st.builds(
    Request, names, st.sampled_from(["allreduce", "broadcast"]), st.tuples(st.integers(1, 3), st.integers(1, 3))
)
batches = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 10**15)), min_size=1, max_size=40),
        st.booleans(),
        st.sets(st.integers(0, 39)),
        st.booleans(),
    ),
    max_size=4,
)


def carry(module: Any, form: Any, known: list[Request], calls_: list[Call | None], recorded: list[Any]) -> Any:
    """The lines of batches of entries, ids in the order of their first appearance; some of them had waited for long."""
    queue = module.Queue(form, MOST)
    lines: list[str] = []
    for seq, (described, flow, waiting, executed) in enumerate(recorded):
        handles = [Handle(call, flow=flow) for call in calls_]
        entries = [
            (SlottedEntry if at_ns % 2 else Entry)(known[r % len(known)], handles[c % len(handles)], at_ns)
            for r, c, at_ns in described
        ]
        assert module.origins(entries) == portable.origins(entries)
        for number in waiting:
            life = queue.begin_life(entries[number % len(entries)])
            if life is not None:
                lines += form.life_begin(life, 0).splitlines()
        queue.carried(entries, 0, seq, (10, 20, 30), executed)
        assert [queue.begin_life(entry) for entry in entries if entry.handle.call is not None] == [
            None for entry in entries if entry.handle.call is not None
        ]
        queue.carried(entries, 0, seq, (10, 20, 30), executed)  # nothing is recorded twice
        lines += queue.take().decode().splitlines()
    ids: dict[str, int] = {}
    renamed = [
        re.sub(r'"id":"0\.(\d+)"', lambda found: f'"id":{ids.setdefault(found[1], len(ids))}', line) for line in lines
    ]
    return renamed, queue.lost


@pytest.mark.parametrize("make_format", [ShardFormat, HorovodFormat])
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    known=st.lists(requests, min_size=1, max_size=5),
    calls_=st.lists(st.one_of(st.none(), calls), min_size=1, max_size=3),
    recorded=batches,
)
def test_entries_of_the_runtime_become_the_same_lives(
    make_format: Callable[[ShardHeader], Any], known: list[Request], calls_: list[Call | None], recorded: list[Any]
) -> None:
    """Whoever asked for them, whether or not they had waited for long; those that were submitted unrecorded have none."""
    expected = carry(portable, make_format(header()), known, calls_, recorded)

    assert carry(compiled, make_format(header()), known, calls_, recorded) == expected


def test_what_no_entry_is_cannot_be_recorded() -> None:
    """It is counted, and what else was carried is there."""
    queue = compiled.Queue(ShardFormat(header()), MOST)
    good = Entry(Request("a", "allreduce", (1,)), Handle(Call("", blocking=False), flow=False), 5)
    queue.carried([object(), good, None], 0, 1, (6, 7, 8), True)
    with pytest.raises(TypeError):
        queue.carried([good], 0, 1, (6, 7), True)
    with pytest.raises(AttributeError):
        queue.begin_life(object())

    assert queue.lost == 2
    assert queue.take().count(b"\n") == 8


def test_very_many_records_come_in_order() -> None:
    """Several chunks, several texts at a time, and records larger than a chunk."""
    form = ShardFormat(header())
    queue = compiled.Queue(form, MOST)
    expected = []
    for number in range(120_000):
        queue.counter("x", number, number)
        expected.append(number)
    names = [f"allreduce.{number}" for number in range(3000)]
    queue.lives(
        [compiled.TensorLife(n, names[n], "allreduce", 4, "f", (), 5, True) for n in range(3000)], 0, 1, (6, 7, 8)
    )
    events = json.loads(b"[" + queue.take().removesuffix(b",\n") + b"]")

    assert [event["args"]["value"] for event in events if event["ph"] == "C"] == expected
    assert [event["name"] for event in events if event["ph"] == "b"][::4] == names
    assert queue.take() == b""
    assert queue.lost == 0


def test_more_names_than_are_kept() -> None:
    """Unnamed operations have a new name each; records that wait keep theirs."""
    form = ShardFormat(header())
    queue = compiled.Queue(form, MOST)
    for round_ in range(3):
        expected = [f"{round_} {number}" for number in range(20_000)]
        for name in expected:
            queue.span(name, "other", 4, 1, 2, None)
        events = json.loads(b"[" + queue.take().removesuffix(b",\n") + b"]")
        assert [event["name"] for event in events] == expected


@pytest.mark.parametrize("module", [portable, compiled])
def test_what_waits_is_bounded(module: Any) -> None:
    """More than may wait is left out, and counted."""
    queue = module.Queue(ShardFormat(header()), 512 * 100)
    for number in range(5000):
        queue.counter("x", number, number)
    kept = queue.take().count(b"\n")

    assert 0 < kept < 5000
    assert queue.lost == 5000 - kept
    queue.counter("x", 1, 1)
    queue.drop()
    assert queue.lost == 5001 - kept
    assert queue.take() == b""


def test_a_file_that_takes_nothing_is_an_error() -> None:
    """The one that the system gives."""
    queue = compiled.Queue(ShardFormat(header()), MOST)
    queue.counter("x", 1, 1)
    with Path("/dev/full").open("wb") as full, pytest.raises(OSError, match="No space left"):
        queue.write(full.fileno())
    assert queue.take() == b""


@pytest.mark.parametrize("module", [portable, compiled])
def test_waiting_ends_when_nothing_more_comes(module: Any) -> None:
    """Records are written soon after the last one; without records, or when they keep coming, at the interval; on request, at once."""
    queue = module.Queue(ShardFormat(header()), MOST)
    begun = time.monotonic()
    queue.wait(0.1, 0.01)
    assert time.monotonic() - begun >= 0.1
    queue.counter("x", 1, 1)
    begun = time.monotonic()
    queue.wait(60, 0.01)
    queue.take()
    threading.Timer(0.05, queue.wake).start()
    queue.wait(60, 0.01)
    queue.wake()
    queue.wait(60, 0.01)
    assert time.monotonic() - begun < 30


class Ranges:
    """Keeps what is pushed and popped."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def push(self, *told: Any) -> None:
        self.told.append(told)

    def pop(self) -> None:
        self.told.append("pop")


class FakeDevice:
    """Marks are numbers."""

    def __init__(self) -> None:
        self.marks = 0
        self.spans: list[Any] = []

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def span(self, *told: Any) -> None:
        self.spans.append(told)


def seam(module: Any) -> Any:
    """What `recorder.py` makes."""
    phases = {Category.DATA, Category.FORWARD, Category.BACKWARD}
    return module.Spans(
        tids=LANE_TIDS,
        compute=LaneKind.COMPUTE,
        communication=LaneKind.COMMUNICATION,
        host=LaneKind.HOST,
        phases=phases,
        cpu_counters=CPU_COUNTERS,
        starved_counters=STARVED_COUNTERS,
        on_device={Category.FORWARD},
        synchronize="SYNCHRONIZE",
        step_counters=("other cpu_ns", "other starved_ns", "step process_cpu_ns"),
    )


#: What a program does: opens a span, closes one of those that are open, discards one, has a flush write their begins.
moves = st.lists(
    st.one_of(
        st.tuples(
            st.just("begin"),
            st.sampled_from([Category.FORWARD, Category.DATA, Category.OTHER, Category.COLLECTIVE]),
            st.sampled_from(["FORWARD", "SYNCHRONIZE", "x"]),
            st.sampled_from([LaneKind.COMPUTE, LaneKind.DATA, LaneKind.COMMUNICATION]),
            st.sampled_from([None, {}, {"a": 1}]),
        ),
        st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from([None, {}, {"a": 2, "b": 3}])),
        st.tuples(st.just("discard"), st.integers(0, 5)),
        st.tuples(st.just("promote")),
        st.tuples(st.just("begin_step")),
        st.tuples(st.just("end_step"), st.just(5)),
        st.tuples(st.just("enter"), st.sampled_from([{}, {"lane": LaneKind.DATA}, {"n": 1, "lane": LaneKind.COMPUTE}])),
        st.tuples(st.just("exit"), st.sampled_from([None, ValueError("x")])),
    ),
    max_size=25,
)


def leave(block: Any, error: ValueError | None) -> None:
    """As `with` does, at the end of the block or where it raises: the error goes on."""
    if error is None:
        assert not block.__exit__(None, None, None)
    else:
        with contextlib.suppress(ValueError):
            assert not block.__exit__(type(error), error, None)


def play(module: Any, script: list[Any], *, nvtx: bool, device: bool, timeline: bool, elsewhere: bool) -> Any:
    """What comes of a program: events without their times, ranges, what the device was told."""
    spans_ = seam(module)
    ranges, fake = Ranges(), FakeDevice()
    form = ShardFormat(header())
    queue = module.Queue(form, MOST)
    if not elsewhere:
        spans_.mark_training_thread()
    spans_.use_nvtx(ranges if nvtx else None)
    spans_.use_device(fake if device else None)
    spans_.record_into(queue if timeline else None)
    opened: list[Any] = []
    blocks: list[Any] = []
    depths = []
    for kind, *rest in script:
        if kind == "begin":
            opened.append(spans_.begin(*rest[:3], args=rest[3], payload=7))
        elif kind == "promote":
            for one in queue.open_spans():
                one.claim()
        elif kind in {"begin_step", "end_step"}:
            getattr(spans_, kind)(*rest)
        elif kind == "enter":
            blocks.append(spans_.span(Category.FORWARD, "BLOCK", **rest[0]))
            assert blocks[-1].__enter__() is None
        elif kind == "exit":
            leave(blocks.pop() if blocks else contextlib.nullcontext(), rest[0])
        elif opened:
            one = opened[rest[0] % len(opened)]  # a second end says nothing
            spans_.end(one, *rest[1:]) if kind == "end" else spans_.discard(one)
        depths.append(spans_.in_compute_span())
    while blocks:
        leave(blocks.pop(), None)
    left = [(one.name, one.tid, one.args, one.is_claimed) for one in queue.open_spans()]
    spans_.record_into(None)
    queue.close()
    events = json.loads(b"[" + queue.take().removesuffix(b",\n") + b"]")
    for event in events:
        event.update(ts=0, dur=0, **({"args": {}} if event["ph"] == "C" else {}))
    told = [(lane, category, name, given) for lane, category, name, _, given in fake.spans]
    return events, left, ranges.told, told, fake.marks, depths


@settings(max_examples=5 * EXAMPLES, deadline=None)
@given(script=moves, nvtx=st.booleans(), device=st.booleans(), timeline=st.booleans(), elsewhere=st.booleans())
def test_both_do_the_same(script: list[Any], nvtx: bool, device: bool, timeline: bool, elsewhere: bool) -> None:
    """Whatever a program begins, ends and discards, in whatever order."""
    settings_ = {"nvtx": nvtx, "device": device, "timeline": timeline, "elsewhere": elsewhere}

    assert play(portable, script, **settings_) == play(compiled, script, **settings_)


@pytest.fixture(params=["portable", "compiled"])
def recording(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A seam and the queue into which it records."""
    module = portable if request.param == "portable" else compiled
    spans_ = seam(module)
    queue = module.Queue(ShardFormat(header()), MOST)
    spans_.mark_training_thread()
    spans_.record_into(queue)
    yield spans_, queue
    spans_.record_into(None)
    queue.close()


def test_a_device_that_fails_leaves_nothing_open(recording: tuple[Any, Any]) -> None:
    """Its error comes out, as from Python."""
    spans_, queue = recording

    class Broken(FakeDevice):
        def mark(self) -> int:
            raise RuntimeError("no device")

    spans_.use_device(Broken())
    with pytest.raises(RuntimeError, match="no device"):
        spans_.begin(Category.FORWARD, "FORWARD")
    spans_.use_device(None)
    spans_.end(spans_.begin(Category.FORWARD, "FORWARD"))

    assert queue.open_spans() == []
    assert not spans_.in_compute_span()


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [((), {}), ((Category.DATA,), {}), ((Category.DATA, "x"), {"lines": 1}), ((Category.DATA, "x"), {"name": "y"})],
)
def test_wrong_arguments_are_refused(recording: tuple[Any, Any], arguments: tuple[Any, ...], keywords: Any) -> None:
    """As Python does it."""
    spans_, queue = recording
    with pytest.raises(TypeError):
        spans_.begin(*arguments, **keywords)
    with pytest.raises(KeyError):
        spans_.begin(Category.DATA, "x", LaneKind.WORKER)
    assert queue.take() == b""


def test_threads_record_at_the_same_time(recording: tuple[Any, Any], tmp_path: Path) -> None:
    """While one writes: nothing is lost or torn, and each thread's records stay in order."""
    spans_, queue = recording
    threads, each = 4, 3000
    done = threading.Event()

    def record(thread: int) -> None:
        for number in range(each):
            opened = spans_.begin(Category.COLLECTIVE, f"{thread}", LaneKind.COMMUNICATION, {"n": number})
            spans_.end(opened, {"thread": thread})

    with (tmp_path / "lines").open("wb") as file:

        def write() -> None:
            while not done.is_set():
                queue.write(file.fileno())

        writer = threading.Thread(target=write)
        writer.start()
        workers = [threading.Thread(target=record, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        done.set()
        writer.join()
        queue.write(file.fileno())
    lines = (tmp_path / "lines").read_bytes()
    events = json.loads(b"[" + lines.removesuffix(b",\n") + b"]")

    assert len(events) == threads * each
    for thread in range(threads):
        numbers = [event["args"]["n"] for event in events if event["args"]["thread"] == thread]
        assert numbers == list(range(each))
