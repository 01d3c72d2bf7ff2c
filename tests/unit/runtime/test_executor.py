"""What becomes of a collective that waits for a rank which is gone, and what is recorded of one that a device does."""

import json
import threading
import time
from pathlib import Path
from typing import Any, cast

import torch

from tlkit.runtime.core.binding import Binding
from tlkit.runtime.core.control.endings import Failures
from tlkit.runtime.core.control.messages import Request, Response
from tlkit.runtime.core.executor import Executor
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.work import Batch, Completions, Entry, Handle
from tlkit.timeline import recorder

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
    """Executes: waits for the transport, or has a device do it, later than it is handed out."""

    def __init__(self, *, on_device: bool = False) -> None:
        self.begun = threading.Event()
        self.on_device = on_device
        self.device_ns = 0

    def execute(self, group: Group, _: Batch) -> int | None:
        self.begun.set()
        if not self.on_device:
            assert group.aborted.wait(20)
            return None
        self.device_ns = recorder.now_ns() + 1_000_000
        while recorder.now_ns() < self.device_ns + 1_000_000:
            pass
        return self.device_ns


def an_entry() -> Entry:
    request = Request(name="allreduce.x", kind=Kind.ALLREDUCE, dtype="float32", shape=(1,))
    tensor = torch.zeros(1)
    entry = Entry(request, tensor, tensor, Handle(list), recorder.now_ns())
    entry.handle.entries, entry.handle.remaining = [entry], 1
    return entry


def an_executor(framework: Framework, completions: Completions) -> tuple[Executor, Group]:
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


def test_a_collective_on_a_device_begins_when_the_device_does(tmp_path: Path) -> None:
    """And its rank arrives then: the host has asked long before, which says nothing of who is late."""
    start(tmp_path / "t.json", 0)
    completions, framework, entry = Completions(), Framework(on_device=True), an_entry()
    executor, _ = an_executor(framework, completions)
    response = Response(0, 0, [], [], arrivals_ns=[1, 2])
    executor.put(response, [entry], 0)
    while entry.handle.remaining:
        completions.wait(entry.handle, 0.1)
    executor.stop()
    assert executor.join(10)
    recorder.stop_timeline()
    (span,) = [event for event in json.loads((tmp_path / "t.json").read_text()) if event["name"] == "ALLREDUCE"]

    assert span["ts"] == span["args"]["submitted"] == round(framework.device_ns / 1e3, 3)
    assert "arrivals" not in span["args"]
