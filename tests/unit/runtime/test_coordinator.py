"""The negotiation, replayed without sockets."""

import random
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.runtime.core.control import bits
from tlkit.runtime.core.control.consistency import find_disagreement
from tlkit.runtime.core.control.coordinator import Coordinator
from tlkit.runtime.core.control.messages import Ready, Request, Response, Work, from_ranges, to_ranges, to_runs
from tlkit.runtime.core.control.tensor_table import TensorTable
from tlkit.runtime.core.errors import HorovodInternalError
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.work import Entry, Handle, Together, whole_of


def request(name: str, **changes: object) -> Request:
    """An allreduce of four floats, changed as asked."""
    described: dict[str, object] = {"kind": "allreduce", "dtype": "float32", "shape": (4,)}
    described |= changes
    return Request(name=name, **(described | {"kind": Kind(str(described["kind"]))}))  # type: ignore[arg-type]


def entry(name: str, submitted_ns: int = 0, **changes: object) -> Entry:
    """A submitted tensor."""
    tensor = torch.zeros(4)
    return Entry(request(name, **changes), tensor, tensor, Handle(lambda _: None), submitted_ns)


def coordinator(size: int = 2, capacity: int = 1024, threshold: int = 1 << 20) -> Coordinator:
    """A coordinator of one process set."""
    return Coordinator({0: tuple(range(size))}, fusion_threshold_nbytes=threshold, cache_capacity=capacity)


def ask(name: str, at_ns: int, **changes: object) -> Ready:
    """A message that asks for one tensor in full."""
    return ready([request(name, **changes)], [at_ns])


def ready(requests: list[Request], times_ns: list[int]) -> Ready:
    """A message that asks for tensors in full."""
    return Ready(requests, {}, to_runs(times_ns))


def tell(mind: Coordinator, rank: int, message: Ready, offset_ns: int = 0) -> None:
    """Deliver a message."""
    mind.receive(rank, message, offset_ns, 0)


def take(mind: Coordinator) -> Work | None:
    """What the coordinator would send to a rank that is in every process set."""
    orders = mind.take()
    return None if orders is None else Work([response for _, response in orders.responses], orders.forgotten)


def test_nothing_is_done_before_all_ranks_have_asked() -> None:
    """One rank alone gets no answer."""
    mind = coordinator()
    tell(mind, 0, ask("a", 1))

    assert take(mind) is None


def test_arrivals_are_on_the_coordinators_clock() -> None:
    """Each rank's time is shifted by its offset, and a batch has the latest time of its tensors."""
    mind = coordinator()
    tell(mind, 0, ready([request("a"), request("b")], [10, 30]))
    tell(mind, 1, ready([request("b"), request("a")], [1005, 1001]), -900)
    work = take(mind)

    assert work is not None
    assert [response.arrivals_ns for response in work.responses] == [[30, 105]]


def test_the_second_time_ids_are_enough() -> None:
    """In the steady state neither side spells a name."""
    mind = coordinator()
    tables = [TensorTable(), TensorTable()]
    for repetition in range(3):
        for rank, table in enumerate(tables):
            table.submit([entry("a"), entry("b")])
            message = table.collect()
            assert message is not None
            assert len(message.fresh) == (2 if repetition == 0 else 0)
            tell(mind, rank, message)
        work = take(mind)
        assert work is not None
        assert [response.names for response in work.responses] == [["a", "b"] if repetition == 0 else []]
        for table in tables:
            ((_, entries),) = table.receive(work)
            assert [each.request.name for each in entries] == ["a", "b"]


def test_a_changed_shape_is_negotiated_anew() -> None:
    """An allgather whose length changes on one rank is answered with the new sizes."""
    mind = coordinator()
    for length in (3, 5):
        tell(mind, 0, ask("g", 0, kind="allgather", shape=(2, 7)))
        tell(mind, 1, ask("g", 0, kind="allgather", shape=(length, 7)))
        work = take(mind)
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
    tell(mind, 0, ask("a", 0))
    tell(mind, 1, ask("a", 0, **changes))
    work = take(mind)

    assert work is not None
    assert message in work.responses[0].error
    assert "[a: " in work.responses[0].error
    assert "rank 1" in work.responses[0].error


def test_an_error_does_not_stop_what_follows() -> None:
    """The same name works the next time."""
    mind = coordinator()
    tell(mind, 0, ask("a", 0))
    tell(mind, 1, ask("a", 0, shape=(3,)))
    take(mind)
    tell(mind, 0, ask("a", 0))
    tell(mind, 1, ask("a", 0))
    work = take(mind)

    assert work is not None
    assert not work.responses[0].error


def test_a_name_in_flight_is_refused() -> None:
    """The second submission raises, the first goes on."""
    table = TensorTable()
    table.submit([entry("a")])
    with pytest.raises(ValueError, match="same name as another tensor"):
        table.submit([entry("b"), entry("a")])

    assert [each.request.name for each in table.pending()] == ["a"]


def test_after_the_end_nothing_is_taken() -> None:
    """What was waiting is handed back, and the next submission says why."""
    table = TensorTable()
    waiting = entry("a")
    table.submit([waiting])

    assert table.close("rank 1 is gone") == [waiting]
    with pytest.raises(HorovodInternalError, match="rank 1 is gone"):
        table.submit([entry("b")])


def test_what_is_asked_for_as_the_last_time_is_taken_in_one_step() -> None:
    """It is found by its record, and goes on as any other."""
    table = TensorTable()
    table.submit([first := entry("a")])
    (record,) = [found for found in [table.record(0, "a")] if found is not None]
    table.collect()
    table.receive(Work([Response(0, 0, [], ["a"], fresh_ids=[5])]))

    again = Entry(first.request, first.tensor, first.output, Handle(lambda _: None), 0)
    assert table.submit_again(record, again)
    assert table.pending() == [again]
    collected = table.collect()
    assert collected is not None
    assert (collected.fresh, collected.known) == ([], {0: [5, 1]})


def test_one_step_is_not_enough_where_something_is_wrong() -> None:
    """In flight, asked for differently, forgotten, in the middle of another submission, or after the end: `submit` says what it is."""
    table = TensorTable()
    table.submit([first := entry("a")])
    (record,) = [found for found in [table.record(0, "a")] if found is not None]
    same = Entry(first.request, first.tensor, first.output, Handle(lambda _: None), 0)
    assert not table.submit_again(record, same)  # in flight

    record.entry = None
    assert not table.submit_again(record, entry("a", shape=(2, 2)))
    table._submitting = [first]
    assert not table.submit_again(record, same)
    table._submitting = ()
    record.id = -1
    table._drop(record)
    assert not table.submit_again(record, same)
    table.submit([same])
    assert table.pending() == [same]  # by a record of its own

    (record,) = [found for found in [table.record(0, "a")] if found is not None]
    table.close("rank 1 is gone")
    assert not table.submit_again(record, Entry(first.request, first.tensor, None, Handle(lambda _: None), 0))


def test_the_memory_of_tensors_that_belong_together_is_that_of_all_of_them_in_order() -> None:
    """Not of some, nor of all in another order, nor of all and another one."""
    entries = [entry(name) for name in "abc"]
    alone = entry("d")
    assert whole_of(entries) is None
    memory = torch.zeros(12)
    Together(list(entries), memory)

    assert whole_of(entries) is memory
    assert whole_of(entries[:2]) is None
    assert whole_of([entries[1], entries[0], entries[2]]) is None
    assert whole_of([*entries, alone]) is None
    assert whole_of([alone, *entries]) is None


def test_a_stalled_tensor_names_who_is_missing() -> None:
    """Only what waits for long enough counts."""
    mind = coordinator(size=3)
    mind.receive(1, ask("a", 1_000), 0, 1_000)

    (stalled,) = mind.find_stalled(now_ns=10_000, longer_than_ns=5_000)
    assert (stalled.name, stalled.missing_ranks) == ("a", (0, 2))
    assert mind.find_stalled(now_ns=5_000, longer_than_ns=5_000) == []


def _deliver(mind: Coordinator, tables: list[TensorTable], rank: int) -> None:
    message = tables[rank].collect()
    while message is not None:
        tell(mind, rank, message)
        message = tables[rank].collect()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 6),
    st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), max_size=8),
    st.randoms(use_true_random=False),
)
def test_any_order_of_submission_is_executed_completely_and_alike(
    size: int, capacity: int, steps: list[list[str]], chance: random.Random
) -> None:
    """Whatever the order and the size of the cache, every rank executes every tensor, all in one order."""
    mind = coordinator(size, capacity, threshold=chance.choice([0, 20, 1 << 20]))
    tables = [TensorTable() for _ in range(size)]
    executed: list[list[str]] = [[] for _ in range(size)]
    delayed: list[list[Work]] = [[] for _ in range(size)]
    for step_number, step in enumerate(steps):
        for rank, table in enumerate(tables):
            for name in chance.sample(step, len(step)):
                # Now and then all ranks ask for something else under the same name.
                table.submit([entry(name, priority=chance.choice([0, 0, 1]), shape=(4 + step_number % 2,))])
                if chance.random() < 0.5:
                    _deliver(mind, tables, rank)
        for rank in chance.sample(range(size), size):
            _deliver(mind, tables, rank)
            work = take(mind)
            if work is not None:
                for queue in delayed:
                    queue.append(work)
        # Every rank reads its messages when it likes, but before it submits the same names again.
        for rank, table in enumerate(tables):
            for work in delayed[rank]:
                for response, entries in table.receive(work):
                    assert not response.error
                    executed[rank] += [each.request.name for each in entries]
            delayed[rank].clear()

    assert all(order == executed[0] for order in executed)
    assert sorted(executed[0]) == sorted(name for step in steps for name in step)


def test_a_known_tensor_that_stalls_is_found_too() -> None:
    """Ids hide nothing from the stall check, which notices what it sees twice."""
    mind, tables = coordinator(), [TensorTable(), TensorTable()]
    for rank, table in enumerate(tables):
        table.submit([entry("a")])
        _deliver(mind, tables, rank)
    work = take(mind)
    assert work is not None
    for table in tables:
        table.receive(work)
    tables[0].submit([entry("a")])
    _deliver(mind, tables, 0)

    assert mind.find_stalled(now_ns=1_000, longer_than_ns=100) == []
    (stalled,) = mind.find_stalled(now_ns=2_000, longer_than_ns=100)
    assert (stalled.name, stalled.missing_ranks, stalled.waiting_ns) == ("a", (1,), 1_000)


def _absent(asked: Request) -> Entry:
    return entry(asked.name)


def test_a_rank_that_has_joined_brings_zeros_and_the_last_one_ends_it() -> None:
    """Known and new tensors alike; a gather fails; afterwards everything is as before."""
    mind, tables = coordinator(), [TensorTable(_absent), TensorTable(_absent)]

    def exchange(*asked: tuple[int, Entry]) -> list[list[tuple[str, str]]]:
        for rank, each in asked:
            tables[rank].submit([each])
            _deliver(mind, tables, rank)
        work = take(mind)
        assert work is not None
        return [
            [(each.request.name, response.error) for response, entries in table.receive(work) for each in entries]
            for table in tables
        ]

    assert exchange((0, entry("a")), (1, entry("a"))) == [[("a", "")]] * 2
    tables[0].submit([entry("a")])
    _deliver(mind, tables, 0)
    assert exchange((1, entry("join.noname", kind="join"))) == [[("a", "")], [("a", "")]]
    assert exchange((0, entry("new"))) == [[("new", "")], [("new", "")]]
    (mine, theirs) = exchange((0, entry("g", kind="allgather")))
    assert "Allgather is not supported with Join at this time." in mine[0][1]
    assert theirs == []
    assert exchange((0, entry("join.noname", kind="join"))) == [[("join.noname", "")]] * 2
    assert exchange((0, entry("a")), (1, entry("a"))) == [[("a", "")]] * 2


def test_higher_priority_goes_first() -> None:
    """Among what is ready, whatever the order in which it became so."""
    mind = coordinator(threshold=0)
    for rank in (0, 1):
        tell(
            mind,
            rank,
            ready([request("late", priority=1), request("early", priority=5), request("mid", priority=3)], [0] * 3),
        )
    work = take(mind)

    assert work is not None
    assert [response.names for response in work.responses] == [["early"], ["mid"], ["late"]]


def test_process_sets_come_and_go_by_agreement() -> None:
    """A new set gets the lowest free id; what waits in a removed one fails; ranks that differ get an error."""
    mind = coordinator(size=3)
    for rank in range(3):
        tell(mind, rank, ready([request("process_set", kind="add_process_set", dtype="uint8", shape=(0, 1))], [0]))
    work = take(mind)
    assert work is not None
    assert work.responses[0].sizes == [[1]]
    tell(mind, 0, ready([request("a", process_set=1)], [0]))
    with pytest.raises(ValueError, match="rank 2 is not in process set 1"):
        tell(mind, 2, ready([request("a", process_set=1)], [0]))
    for rank in range(3):
        tell(mind, rank, ready([request("process_set", kind="remove_process_set", dtype="uint8", shape=(1,))], [0]))
    orders = mind.take()
    assert orders is not None
    assert [(ranks, response.error) for ranks, response in orders.responses] == [
        ((0, 1), "Process set has been removed"),
        ((0, 1, 2), ""),
    ]
    for rank in range(3):
        shape = (0, 1) if rank else (0, 2)
        tell(mind, rank, ready([request("process_set", kind="add_process_set", dtype="uint8", shape=shape)], [0]))
    work = take(mind)
    assert work is not None
    assert "Mismatched process sets" in work.responses[0].error


@given(st.lists(st.sets(st.integers(0, 40)), max_size=9))
def test_a_tally_counts(sets: list[set[int]]) -> None:
    """Against a counter that counts one by one."""
    tally = bits.Tally()
    for each in sets:
        tally.add(bits.of(each))
    counts = {number: sum(number in each for each in sets) for number in range(41)}

    for wanted in range(1, 10):
        assert list(bits.members(tally.equal_to(wanted))) == [number for number in counts if counts[number] == wanted]
    assert list(bits.members(tally.positive())) == [number for number in counts if counts[number]]


@given(st.lists(st.integers(0, 60), unique=True))
def test_ranges_are_ids(ids: list[int]) -> None:
    """Written and read again in the same order."""
    assert from_ranges(to_ranges(ids)) == ids


def test_a_disagreement_reads_the_same_whoever_asked_first() -> None:
    """Messages are searched for and compared: the order of arrival must not show."""
    of_rank = {rank: request("x", shape=(3 + rank,)) for rank in range(3)}
    said = {find_disagreement({rank: of_rank[rank] for rank in order}) for order in permutations(of_rank)}
    assert len(said) == 1
    assert "shape [3], but another rank sent a tensor of shape [4]" in said.pop()


def _repeat(mind: Coordinator, tables: list[TensorTable], *names: str) -> Work:
    """All ranks ask for these, and are answered."""
    for rank, table in enumerate(tables):
        table.submit([entry(name) for name in names])
        _deliver(mind, tables, rank)
    work = take(mind)
    assert work is not None
    for table in tables:
        table.receive(work)
    return work


def test_what_a_rank_said_in_an_order_is_handled_in_that_order() -> None:
    """A known tensor before a join: both in one breath, and the tensor is done with the rank's own values."""
    mind, tables = coordinator(), [TensorTable(_absent), TensorTable(_absent)]
    _repeat(mind, tables, "a")
    tables[0].submit([entry("a")])
    _deliver(mind, tables, 0)
    tables[1].submit([mine := entry("a")])
    tables[1].submit([entry("join.noname", kind="join")])
    _deliver(mind, tables, 1)
    work = take(mind)

    assert work is not None
    ((_, entries),) = tables[1].receive(work)
    assert entries == [mine]


def test_the_last_rank_to_join_leaves_no_tensor_behind() -> None:
    """Rank 0 asked for it before it joined; the others never do."""
    mind, tables = coordinator(), [TensorTable(_absent), TensorTable(_absent)]
    tables[0].submit([entry("a")])
    tables[0].submit([entry("join.noname", kind="join")])
    _deliver(mind, tables, 0)
    tables[1].submit([entry("join.noname", kind="join")])
    _deliver(mind, tables, 1)
    work = take(mind)

    assert work is not None
    assert [response.names for response in work.responses] == [["a"], ["join.noname"]]
    assert mind.is_idle


def test_a_number_that_was_forgotten_is_understood_until_all_have_heard_of_it() -> None:
    """The rank said it before it was told; nothing is asked back, so nothing that it said later overtakes it."""
    mind, tables = coordinator(capacity=1), [TensorTable(), TensorTable()]
    _repeat(mind, tables, "old")
    for _ in range(4):
        _repeat(mind, tables, "new")
    _repeat(mind, tables, "old")
    for _ in range(4):
        _repeat(mind, tables, "new")
    tables[0].submit([mine := entry("old")])
    on_its_way = tables[0].collect()
    assert on_its_way is not None
    assert on_its_way.known
    assert _repeat(mind, tables, "new").forgotten == {}
    while not _repeat(mind, tables, "new").forgotten:
        pass
    tell(mind, 0, on_its_way)
    tables[1].submit([entry("old")])
    _deliver(mind, tables, 1)
    work = take(mind)

    assert work is not None
    assert [response.names for response in work.responses] == [["old"]]
    assert tables[0].receive(work) == [(work.responses[0], [mine])]


def test_more_tensors_than_numbers_keep_the_numbers_they_have() -> None:
    """Three tensors and two numbers: two are asked for by number for ever, instead of none."""
    mind, tables = coordinator(capacity=2), [TensorTable(), TensorTable()]
    for _ in range(5):
        work = _repeat(mind, tables, "a", "b", "c")
    for table in tables:
        table.submit([entry(name) for name in "abc"])
    said = [table.collect() for table in tables]

    assert [[request.name for request in message.fresh] for message in said if message] == [["c"], ["c"]]
    assert not work.forgotten


def test_a_number_is_free_again_after_it_was_not_used_for_long() -> None:
    """What came later gets it."""
    mind, tables = coordinator(capacity=1), [TensorTable(), TensorTable()]
    _repeat(mind, tables, "old")
    for _ in range(11):
        _repeat(mind, tables, "new")
    tables[0].submit([entry("new")])
    message = tables[0].collect()

    assert message is not None
    assert message.known


def test_a_rank_that_asks_twice_is_an_error() -> None:
    """It would be answered once."""
    mind = coordinator()
    tell(mind, 0, ask("a", 0))
    with pytest.raises(ValueError, match="rank 0 asks twice for a"):
        tell(mind, 0, ask("a", 0))


def test_batches_are_the_same_with_numbers_and_with_names() -> None:
    """Whatever the order in which ranks ask, and however many of the tensors are known."""
    orders = []
    for capacity in (0, 1024):
        mind, tables = coordinator(capacity=capacity, threshold=48), [TensorTable(), TensorTable()]
        _repeat(mind, tables, "a", "b", "c")
        batches = []
        for step in (["c", "new", "a", "b"], ["b", "c", "a", "new"]):
            for rank, table in enumerate(tables):
                table.submit([entry(name) for name in step])
                _deliver(mind, tables, rank)
            work = take(mind)
            assert work is not None
            answered = [table.receive(work) for table in tables]
            batches.append([[each.request.name for each in entries] for _, entries in answered[0]])
        orders.append(batches)

    assert orders[0] == orders[1]
    assert orders[0] == [[["a", "b", "c"], ["new"]]] * 2


def test_the_number_of_a_removed_set_is_given_again_when_all_have_heard_of_it() -> None:
    """A request that was on its way is refused, and not taken for one of the new set."""
    mind, tables = coordinator(size=2), [TensorTable(), TensorTable()]

    def agree(kind: str, *shape: int) -> list[list[int]]:
        for rank, table in enumerate(tables):
            table.submit([entry("sets", kind=kind, shape=shape, dtype="uint8")])
            message = table.collect(done[rank])
            assert message is not None
            tell(mind, rank, message)
        work = take(mind)
        assert work is not None
        for table in tables:
            table.receive(work)
        return work.responses[-1].sizes

    done = [0, 0]
    assert agree("add_process_set", 0) == [[1]]
    assert agree("remove_process_set", 1) == [[1]]
    assert agree("add_process_set", 1) == [[2]]
    done = [3, 3]
    assert agree("remove_process_set", 2) == [[2]]
    assert agree("add_process_set", 0) == [[1]]
