"""What becomes of a collective that waits for a rank which is gone, and what is recorded of one that a device does."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from tlkit.runtime.core.binding import Binding
from tlkit.runtime.core.control.endings import Failures
from tlkit.runtime.core.control.messages import Request, Response
from tlkit.runtime.core.executor import Executor
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.work import Batch, Completions, Entry, Handle
from tlkit.timeline.record import recorder

from .doubles import start


class Group:
    """A process set whose transport waits for its peers, as a kernel does, until it is aborted; it raises nothing then."""

    number = 0
    ranks = (0, 1)

    def __init__(self) -> None:
        self.aborted = threading.Event()

    def algorithm(self, _: str) -> str:
        return "nccl"

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        pass


class Framework:
    """Executes: waits for the transport until it is aborted."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def execute(self, group: Group, _: Batch) -> None:
        self.begun.set()
        assert group.aborted.wait(20)


class Later:
    """A batch on a device, which is done with it when a test says so."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure: Exception | None = None
        self.times_ns = (0, 0)

    def wait(self) -> tuple[int, int]:
        assert self.done.wait(20)
        if self.failure is not None:
            raise self.failure
        return self.times_ns

    def end(self, after_ns: int = 0) -> None:
        """It took a millisecond, so long after now."""
        begun_ns = recorder.now_ns() + after_ns
        self.times_ns = (begun_ns, begun_ns + 1_000_000)
        self.done.set()


class DeviceFramework:
    """Hands what is on a device to it; what is on the host is done at once."""

    def __init__(self) -> None:
        self.handed: list[Later] = []
        self.executed: list[str] = []

    def execute(self, _: Group, batch: Batch) -> Later | None:
        request = batch.entries[0].request
        self.executed.append(request.name)
        if request.device == "cpu":
            return None
        self.handed.append(Later())
        return self.handed[-1]


def an_entry(name: str = "allreduce.x", device: str = "cpu") -> Entry:
    request = Request(name=name, kind=Kind.ALLREDUCE, dtype="float32", shape=(1,), device=device)
    tensor = torch.zeros(1)
    entry = Entry(request, tensor, tensor, Handle(list), recorder.now_ns())
    entry.handle.entries, entry.handle.remaining = [entry], 1
    return entry


def an_executor(framework: Any, completions: Completions) -> tuple[Executor, Group]:
    executor = Executor(completions, cast("Binding", framework), lambda _number, _ranks: None)
    group = Group()
    executor.groups[0] = cast("Any", group)
    executor.start()
    return executor, group


def test_a_collective_that_waits_for_the_dead_is_let_go() -> None:
    """What it leaves behind is no result, though the transport does not complain."""
    completions, framework, entry = Completions(), Framework(), an_entry()
    executor, group = an_executor(framework, completions)
    failures = Failures(completions, 60)
    executor.on_failure = failures.note
    executor.put(Response(0, 0, [], []), [entry], 0)
    assert framework.begun.wait(10)
    failures.end("rank 1 is gone")
    executor.abort("rank 1 is gone")
    assert not executor.is_idle_within(0.01)
    executor.abort_groups()
    deadline_s = time.monotonic() + 20
    while entry.handle.remaining and time.monotonic() < deadline_s:
        completions.wait(entry.handle, 0.1)
    executor.stop()

    assert group.aborted.is_set()
    assert entry.handle.remaining == 0
    assert entry.handle.error == "rank 1 is gone"
    assert executor.join(10)


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_a_collective_on_a_device_begins_when_the_device_does(tmp_path: Path) -> None:
    """And its rank arrives then: the host has asked long before, which says nothing of who is late."""
    start(tmp_path / "t.json", 0)
    completions, framework, entry = Completions(), DeviceFramework(), an_entry(device="cuda")
    executor, _ = an_executor(framework, completions)
    response = Response(0, 0, [], [], arrivals_ns=[1, 2])
    executor.put(response, [entry], 0)
    wait_until(lambda: framework.handed)
    (later,) = framework.handed
    later.end(after_ns=1_000_000)
    while entry.handle.remaining:
        completions.wait(entry.handle, 0.1)
    executor.stop()
    assert executor.join(10)
    recorder.stop_timeline()
    (span,) = [event for event in json.loads((tmp_path / "t.json").read_text()) if event["name"] == "ALLREDUCE"]

    assert span["ts"] == span["args"]["submitted"] == round(later.times_ns[0] / 1e3, 3)
    assert span["dur"] == 1000
    assert "arrivals" not in span["args"]


def test_a_device_is_handed_the_next_batch_before_it_is_done_with_the_last() -> None:
    """And they finish in their order, each when the device is done with it."""
    completions, framework = Completions(), DeviceFramework()
    executor, _ = an_executor(framework, completions)
    entries = [an_entry(f"allreduce.{number}", "cuda") for number in range(3)]
    for number, entry in enumerate(entries):
        executor.put(Response(number, 0, [], []), [entry], 0)
    wait_until(lambda: len(framework.handed) == 3)
    counts = [(executor.begun, executor.done, executor.load)]
    framework.handed[1].end()
    framework.handed[0].end()
    completions.wait(entries[1].handle, 10)
    finished = [entry.handle.done for entry in entries]
    wait_until(lambda: executor.load == 1)
    counts.append((executor.begun, executor.done, executor.load))
    assert not executor.is_idle_within(0.01)
    framework.handed[2].end()
    executor.stop()

    assert finished == [True, True, False]
    assert executor.join(10)
    assert entries[2].handle.done
    assert counts == [(3, 0, 3), (3, 2, 1)]


def test_the_host_does_its_batches_behind_those_of_the_device() -> None:
    """All ranks do everything in one order, whatever it is on."""
    completions, framework = Completions(), DeviceFramework()
    executor, _ = an_executor(framework, completions)
    on_device, on_host = an_entry("allreduce.a", "cuda"), an_entry("allreduce.b")
    executor.put(Response(0, 0, [], []), [on_device], 0)
    executor.put(Response(1, 0, [], []), [on_host], 0)
    wait_until(lambda: framework.handed)
    wait_until(lambda: executor.begun == 2)
    before = list(framework.executed)
    framework.handed[0].end()
    completions.wait(on_host.handle, 10)
    executor.stop()

    assert before == ["allreduce.a"]
    assert framework.executed == ["allreduce.a", "allreduce.b"]
    assert on_device.handle.done
    assert on_host.handle.done
    assert executor.join(10)


def test_what_a_device_fails_with_is_the_error_of_its_batch() -> None:
    """CUDA tells it when it is waited for."""
    completions, framework = Completions(), DeviceFramework()
    executor, _ = an_executor(framework, completions)
    failures: list[str] = []
    executor.on_failure = lambda reason, _: failures.append(reason)
    executor.put(Response(0, 0, [], []), [an_entry("allreduce.a", "cuda")], 0)
    wait_until(lambda: framework.handed)
    framework.handed[0].failure = RuntimeError("CUDA error: unspecified launch failure\nmore")
    framework.handed[0].end()
    wait_until(lambda: failures)
    executor.stop()

    assert failures == ["allreduce of allreduce.a failed: CUDA error: unspecified launch failure"]
    assert executor.join(10)


def test_what_an_abort_leaves_behind_on_a_device_is_no_result() -> None:
    """The kernel of an aborted communicator ends without an error."""
    completions, framework, entry = Completions(), DeviceFramework(), an_entry(device="cuda")
    executor, _ = an_executor(framework, completions)
    failures: list[str] = []
    executor.on_failure = lambda reason, _: failures.append(reason)
    executor.put(Response(0, 0, [], []), [entry], 0)
    wait_until(lambda: framework.handed)
    executor.abort("rank 1 is gone")
    framework.handed[0].end()
    wait_until(lambda: failures)
    executor.stop()

    assert failures == ["rank 1 is gone"]
    assert not entry.handle.done
    assert executor.join(10)
