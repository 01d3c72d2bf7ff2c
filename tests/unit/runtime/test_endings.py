"""Operations that fail wait for the cause, and no longer."""

import time

import pytest

from tlkit.runtime.core.control.endings import Failures, farewell
from tlkit.runtime.core.control.messages import Request
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.work import Completions, Entry, Handle


@pytest.fixture
def completions() -> Completions:
    """Where operations end."""
    return Completions()


def make_entry() -> Entry:
    """An allreduce that somebody waits for."""
    import torch

    request = Request(name="allreduce.x", kind=Kind.ALLREDUCE, dtype="float32", shape=(1,))
    tensor = torch.zeros(1)
    entry = Entry(request, tensor, tensor, Handle(list), 0)
    entry.handle.entries, entry.handle.remaining = [entry], 1
    return entry


def test_a_failed_operation_ends_with_the_cause(completions: Completions) -> None:
    """Not with what the transport said of it."""
    failures, entry = Failures(completions, 60), make_entry()
    failures.note("the connection was closed", [entry])
    assert failures.are_open
    assert failures.take_new() == "the connection was closed"
    failures.suspect("the connection was closed")
    assert entry.handle.remaining == 1
    assert 59 < (failures.remaining_s or 0) <= 60
    failures.end("rank 2 is gone")
    assert entry.handle.remaining == 0
    assert entry.handle.error == "rank 2 is gone"


def test_what_fails_after_the_end_ends_at_once(completions: Completions) -> None:
    """A collective may outlast the control plane: nobody would come back to it."""
    failures, entry = Failures(completions, 60), make_entry()
    failures.end("rank 2 is gone")
    failures.note("the connection was closed", [entry])
    assert entry.handle.error == "rank 2 is gone"


def test_nothing_better_is_heard_within_the_time(completions: Completions) -> None:
    """The first suspicion counts, from when it came."""
    failures = Failures(completions, 0.01)
    assert failures.remaining_s is None
    failures.suspect("first")
    time.sleep(0.02)
    failures.suspect("second")
    assert (failures.remaining_s or 0) <= 0
    assert failures.suspicion == "first"


def test_a_farewell_names_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the rank has died, in one line."""
    monkeypatch.setattr("sys.last_value", KeyError("a\nb"), raising=False)
    assert farewell(3, "node1") == "rank 3 on node1 died of KeyError: 'a\\nb'"
    monkeypatch.delattr("sys.last_value")
    assert farewell(3, "node1") == "rank 3 has shut down"
