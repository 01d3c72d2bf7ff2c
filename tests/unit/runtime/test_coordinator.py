"""The negotiation, replayed without sockets."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tlkit.runtime.control.coordinator import Coordinator
from tlkit.runtime.control.member import Member
from tlkit.runtime.control.messages import Ready, Request, Work
from tlkit.runtime.errors import HorovodInternalError
from tlkit.runtime.work import Entry, Handle


def request(name: str, **changes: object) -> Request:
    """An allreduce of four floats, changed as asked."""
    described: dict[str, object] = {"kind": "allreduce", "dtype": "float32", "shape": (4,)}
    return Request(name=name, **(described | changes))  # type: ignore[arg-type]


def entry(name: str, submitted_ns: int = 0, **changes: object) -> Entry:
    """A submitted tensor."""
    tensor = torch.zeros(4)
    return Entry(request(name, **changes), tensor, tensor, Handle(lambda _: None), submitted_ns)


def coordinator(size: int = 2, capacity: int = 1024, threshold: int = 1 << 20) -> Coordinator:
    """A coordinator of one process set."""
    return Coordinator({0: tuple(range(size))}, fusion_threshold_nbytes=threshold, cache_capacity=capacity)


def ask(name: str, at_ns: int, **changes: object) -> Ready:
    """A message that asks for one tensor in full."""
    return Ready([request(name, **changes)], [at_ns], [], [])


def test_nothing_is_done_before_all_ranks_have_asked() -> None:
    """One rank alone gets no answer."""
    mind = coordinator()
    mind.receive(0, ask("a", 1), 0)

    assert mind.take() is None


def test_arrivals_are_on_the_coordinators_clock() -> None:
    """Each rank's time is shifted by its offset, and a batch has the latest time of its tensors."""
    mind = coordinator()
    mind.receive(0, Ready([request("a"), request("b")], [10, 30], [], []), 0)
    mind.receive(1, Ready([request("b"), request("a")], [1005, 1001], [], []), -900)
    work = mind.take()

    assert work is not None
    assert [response.arrivals_ns for response in work.responses] == [[30, 105]]


def test_the_second_time_ids_are_enough() -> None:
    """In the steady state neither side spells a name."""
    mind = coordinator()
    members = [Member(), Member()]
    for repetition in range(3):
        for rank, member in enumerate(members):
            member.submit([entry("a"), entry("b")])
            ready = member.collect()
            assert ready is not None
            assert len(ready.fresh) == (2 if repetition == 0 else 0)
            mind.receive(rank, ready, 0)
        work = mind.take()
        assert work is not None
        assert [response.names for response in work.responses] == [["a", "b"] if repetition == 0 else []]
        for member in members:
            ((_, entries),) = member.receive(work)
            assert [each.request.name for each in entries] == ["a", "b"]


def test_a_changed_shape_is_negotiated_anew() -> None:
    """An allgather whose length changes on one rank is answered with the new sizes."""
    mind = coordinator()
    for length in (3, 5):
        mind.receive(0, ask("g", 0, kind="allgather", shape=(2, 7)), 0)
        mind.receive(1, ask("g", 0, kind="allgather", shape=(length, 7)), 0)
        work = mind.take()
        assert work is not None
        assert work.responses[0].sizes == [[2, length]]
        assert work.responses[0].names == ["g"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int32"}, "Mismatched data types: One rank had type float32, but another rank had type int32."),
        ({"shape": (3,)}, "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [4]"),
        ({"op": 3}, "Mismatched reduction operation: One rank sent reduction op 1"),
        ({"prescale": 2.0}, "Mismatched prescale and/or postscale factors: One rank sent factors (1, 1)"),
        ({"device": "cuda"}, "Mismatched ALLREDUCE CPU/GPU device selection"),
    ],
)
def test_disagreement_is_an_error_that_names_the_ranks(changes: dict[str, object], message: str) -> None:
    """Horovod's sentence, and who it is about."""
    mind = coordinator()
    mind.receive(0, ask("a", 0), 0)
    mind.receive(1, ask("a", 0, **changes), 0)
    work = mind.take()

    assert work is not None
    assert message in work.responses[0].error
    assert "[a: " in work.responses[0].error
    assert "rank 1" in work.responses[0].error


def test_an_error_does_not_stop_what_follows() -> None:
    """The same name works the next time."""
    mind = coordinator()
    mind.receive(0, ask("a", 0), 0)
    mind.receive(1, ask("a", 0, shape=(3,)), 0)
    mind.take()
    mind.receive(0, ask("a", 0), 0)
    mind.receive(1, ask("a", 0), 0)
    work = mind.take()

    assert work is not None
    assert not work.responses[0].error


def test_a_name_in_flight_is_refused() -> None:
    """The second submission raises, the first goes on."""
    member = Member()
    member.submit([entry("a")])
    with pytest.raises(ValueError, match="same name as another tensor"):
        member.submit([entry("b"), entry("a")])

    assert [each.request.name for each in member.pending()] == ["a"]


def test_after_the_end_nothing_is_taken() -> None:
    """What was waiting is handed back, and the next submission says why."""
    member = Member()
    waiting = entry("a")
    member.submit([waiting])

    assert member.close("rank 1 is gone") == [waiting]
    with pytest.raises(HorovodInternalError, match="rank 1 is gone"):
        member.submit([entry("b")])


def test_a_stalled_tensor_names_who_is_missing() -> None:
    """Only what waits for long enough counts."""
    mind = coordinator(size=3)
    mind.receive(1, ask("a", 1_000), 0)

    (stalled,) = mind.find_stalled(now_ns=10_000, longer_than_ns=5_000)
    assert (stalled.name, stalled.missing_ranks) == ("a", (0, 2))
    assert mind.find_stalled(now_ns=5_000, longer_than_ns=5_000) == []


def _deliver(mind: Coordinator, members: list[Member], rank: int) -> None:
    ready = members[rank].collect()
    while ready is not None:
        unknown = mind.receive(rank, ready, 0)
        members[rank].repeat(unknown)
        ready = members[rank].collect()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 6),
    st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), max_size=6),
    st.randoms(use_true_random=False),
)
def test_any_order_of_submission_is_executed_completely_and_alike(
    size: int, capacity: int, steps: list[list[str]], chance: random.Random
) -> None:
    """Whatever the order and the size of the cache, every rank executes every tensor, all in one order."""
    mind = coordinator(size, capacity, threshold=chance.choice([0, 20, 1 << 20]))
    members = [Member() for _ in range(size)]
    executed: list[list[str]] = [[] for _ in range(size)]
    delayed: list[list[Work]] = [[] for _ in range(size)]
    for step in steps:
        for rank, member in enumerate(members):
            for name in chance.sample(step, len(step)):
                member.submit([entry(name)])
                if chance.random() < 0.5:
                    _deliver(mind, members, rank)
        for rank in chance.sample(range(size), size):
            _deliver(mind, members, rank)
            work = mind.take()
            if work is not None:
                for queue in delayed:
                    queue.append(work)
        # Every rank reads its messages when it likes, but before it submits the same names again.
        for rank, member in enumerate(members):
            for work in delayed[rank]:
                for response, entries in member.receive(work):
                    assert not response.error
                    executed[rank] += [each.request.name for each in entries]
            delayed[rank].clear()

    assert all(order == executed[0] for order in executed)
    assert sorted(executed[0]) == sorted(name for step in steps for name in step)
