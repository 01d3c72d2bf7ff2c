"""Values of small tensors that travel in the messages of the control plane, without sockets."""

import random
from collections.abc import Sequence

import pytest
import torch

from tlkit.runtime.core.control.coordinator import Coordinator
from tlkit.runtime.core.control.messages import Request, Response, Work
from tlkit.runtime.core.control.tensor_table import TensorTable
from tlkit.runtime.core.control.values import sends_along
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.operations import ReduceOp
from tlkit.runtime.core.work import Entry, Handle
from tlkit.runtime.torch.data_plane import small


def joined(_: Request, values: Sequence[bytes]) -> bytes:
    """Instead of a sum, what shows the order."""
    return b"+".join(values)


class Ranks:
    """Some ranks and their coordinator, in one thread."""

    def __init__(self, size: int = 2, *, threshold: int = 1 << 20, capacity: int = 64) -> None:
        self.tables = [TensorTable() for _ in range(size)]
        self.mind = Coordinator(
            {0: tuple(range(size))}, fusion_threshold_nbytes=threshold, cache_capacity=capacity, combine=joined
        )

    def submit(self, rank: int, name: str, values: bytes | None, **changes: object) -> None:
        """A rank asks for four bytes."""
        described: dict[str, object] = {"kind": "allreduce", "dtype": "uint8", "shape": (4,)}
        tensor = torch.zeros(4, dtype=torch.uint8)
        described |= changes
        request = Request(name=name, **(described | {"kind": Kind(str(described["kind"]))}))  # type: ignore[arg-type]
        entry = Entry(request, tensor, tensor, Handle(lambda _: None), 0)
        entry.values = values
        self.tables[rank].submit([entry])

    def say(self, rank: int) -> None:
        """What a rank has submitted comes to the coordinator."""
        message = self.tables[rank].collect()
        if message is not None:
            self.mind.receive(rank, message, 0, 0)

    def answers(self) -> list[Response]:
        """What all ranks are told."""
        orders = self.mind.take()
        if orders is None:
            return []
        responses = [response for _, response in orders.responses]
        for table in self.tables:
            table.receive(Work(responses, orders.forgotten))
        return responses


def test_results_are_in_the_order_of_the_ranks_whoever_comes_first() -> None:
    """By name, and by number from the second time on."""
    ranks = Ranks(3)
    for order in ([2, 0, 1], [1, 2, 0], [0, 1, 2]):
        for rank in order:
            ranks.submit(rank, "a", b"abcd" if rank else b"wxyz")
            ranks.say(rank)
        (answer,) = ranks.answers()

        assert answer.results == [b"wxyz+abcd+abcd"]
    assert answer.names == []


@pytest.mark.parametrize("values", [None, b"short", b""])
def test_a_transport_moves_what_one_rank_does_not_send(values: bytes | None) -> None:
    """And nothing of it is left for the next time."""
    ranks = Ranks(2)
    for _ in range(3):
        ranks.submit(0, "a", b"old!")
        ranks.submit(1, "a", values)
        ranks.say(0)
        ranks.say(1)
        (answer,) = ranks.answers()
        assert answer.results == []

        for rank in (0, 1):
            ranks.submit(rank, "a", b"new%d" % rank)
            ranks.say(rank)
        (answer,) = ranks.answers()
        assert answer.results == [b"new0+new1"]


def test_a_broadcast_takes_the_roots_values_alone() -> None:
    """The others have nothing to say; several go into one answer."""
    ranks = Ranks(3)
    for rank in range(3):
        for name in ("a", "b"):
            ranks.submit(rank, name, name.encode() * 4 if rank == 2 else None, kind="broadcast", root=2)
        ranks.say(rank)

    (answer,) = ranks.answers()
    assert answer.names == ["a", "b"]
    assert answer.results == [b"aaaa", b"bbbb"]


def test_gathered_values_may_differ_in_length() -> None:
    """They lie one behind the other; a rank may have nothing."""
    ranks = Ranks(3)
    for rank, rows in enumerate((2, 0, 1)):
        ranks.submit(rank, "a", b"xy" * rows, kind="allgather", shape=(rows, 2))
        ranks.say(rank)

    (answer,) = ranks.answers()
    assert answer.results == [b"xyxyxy"]
    assert answer.sizes == [[2, 0, 1]]


def test_ranks_that_disagree_hear_so() -> None:
    """The values do not matter then, and are forgotten."""
    ranks = Ranks(2)
    ranks.submit(0, "a", b"abcd")
    ranks.submit(1, "a", b"abcde", shape=(5,))
    ranks.say(0)
    ranks.say(1)
    (answer,) = ranks.answers()

    assert "Mismatched ALLREDUCE tensor shapes" in answer.error
    assert answer.results == []


def test_a_rank_that_has_joined_has_no_values() -> None:
    """What the others have sent is moved by a transport, with what the joined rank brings."""
    ranks = Ranks(2)
    for rank in (0, 1):
        ranks.submit(rank, "a", b"abcd")
        ranks.say(rank)
    ranks.answers()
    ranks.submit(1, "join.noname", None, kind="join", shape=())
    ranks.say(1)
    ranks.submit(0, "a", b"abcd")
    ranks.say(0)
    orders = ranks.mind.take()

    assert orders is not None
    ((_, answer),) = orders.responses
    assert answer.absent
    assert answer.results == []


def test_small_tensors_do_not_disturb_what_travels_by_numbers() -> None:
    """While one waits for a rank, the others are answered as ever; each is answered once."""
    ranks = Ranks(2)
    for _ in range(3):
        for rank in (0, 1):
            for name in "abc":
                ranks.submit(rank, name, None)
            ranks.submit(rank, "small", b"val%d" % rank)
        ranks.say(0)
        assert ranks.answers() == []
        ranks.say(1)
        first, second = ranks.answers()
        assert first.results == [b"val0+val1"]
        assert second.results == []
        assert (len(second.names) or sum(second.ids[1::2])) == 3
    assert ranks.mind.is_idle


def test_without_fusion_each_result_has_an_answer_of_its_own() -> None:
    """The setting that turns fusion off holds for them, too."""
    ranks = Ranks(2, threshold=0)
    for rank in (0, 1):
        ranks.submit(rank, "a", b"abcd")
        ranks.submit(rank, "b", b"abcd")
        ranks.say(rank)

    assert [answer.names for answer in ranks.answers()] == [["a"], ["b"]]


@pytest.mark.parametrize("seed", range(30))
def test_random_lives_end_in_the_right_results(seed: int) -> None:
    """Any order, any subset with values, more names than numbers: a result is of this time's values, and all are answered."""
    chance = random.Random(seed)
    size = chance.randint(2, 4)
    ranks = Ranks(size, capacity=chance.choice([0, 3, 64]))
    names = [f"t{number}" for number in range(8)]
    for round_number in range(20):
        asked = chance.sample(names, chance.randint(1, len(names)))
        sent: dict[tuple[str, int], bytes | None] = {}
        for rank in chance.sample(range(size), size):
            for name in chance.sample(asked, len(asked)):
                values = b"%1d%1d%02d" % (rank, names.index(name), round_number) if chance.random() < 0.7 else None
                sent[name, rank] = values
                ranks.submit(rank, name, values)
                if chance.random() < 0.3:
                    ranks.say(rank)
            ranks.say(rank)
        ids: dict[int, str] = {}
        for table in ranks.tables[:1]:
            ids = {record.id: name for (_, name), record in table._records.items()}
        answered = []
        for answer in ranks.answers():
            told = answer.names or [
                ids[first + place]
                for first, count in zip(answer.ids[::2], answer.ids[1::2], strict=True)
                for place in range(count)
            ]
            answered += told
            for place, name in enumerate(told):
                values_of = [sent[name, rank] for rank in range(size)]
                complete = all(each is not None for each in values_of)
                assert bool(answer.results) == complete
                if complete:
                    assert answer.results[place] == b"+".join(each for each in values_of if each is not None)
        assert sorted(answered) == sorted(asked)
    assert ranks.mind.is_idle


def test_what_is_sent_along() -> None:
    """No device memory, nothing of ranks that do not matter, nothing that is not a plain reduction."""
    request = Request(name="a", kind=Kind.ALLREDUCE, dtype="float32", shape=(1,))

    def changed(**changes: object) -> bool:
        fields = {name: getattr(request, name) for name in Request.__struct_fields__}
        fields |= changes
        return sends_along(Request(**(fields | {"kind": Kind(fields["kind"])})), 1)

    assert changed()
    assert changed(op=int(ReduceOp.PRODUCT))
    assert changed(kind="allgather")
    assert changed(kind="broadcast", root=1)
    assert not changed(kind="broadcast", root=0)
    assert not changed(op=int(ReduceOp.ADASUM))
    assert not changed(device="cuda")
    assert not any(changed(kind=kind) for kind in ("barrier", "join", "alltoall", "reducescatter", "add_process_set"))


@pytest.mark.parametrize("name", ["int32", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", [op for op in ReduceOp if op is not ReduceOp.ADASUM])
def test_results_are_computed_in_the_tensors_own_type(name: str, op: ReduceOp) -> None:
    """Scaled before and after, from one rank to the next; integers are truncated towards zero."""
    dtype = getattr(torch, name)
    tensors = [torch.tensor([1, -7, 3, 5]).to(dtype) * (rank + 1) for rank in range(3)]
    request = Request(name="a", kind=Kind.ALLREDUCE, dtype=name, shape=(4,), op=int(op), prescale=2.0, postscale=0.5)

    result = small.reduce(request, [small.to_bytes(tensor) for tensor in tensors])

    doubled = torch.stack([tensor * 2 for tensor in tensors])
    exact = {
        ReduceOp.AVERAGE: doubled.double().sum(0) * (0.5 / 3),
        ReduceOp.SUM: doubled.double().sum(0) * 0.5,
        ReduceOp.MIN: doubled.double().amin(0) * 0.5,
        ReduceOp.MAX: doubled.double().amax(0) * 0.5,
        ReduceOp.PRODUCT: doubled.double().prod(0) * 0.5,
    }[op]
    found = torch.empty(4, dtype=dtype)
    small.from_bytes(found, result)
    if dtype.is_floating_point:
        torch.testing.assert_close(found.double(), exact, rtol=0.02 if found.itemsize == 2 else 1e-6, atol=1e-6)
    else:
        assert found.tolist() == exact.trunc().to(dtype).tolist()


def test_tensors_without_values_and_results_of_another_length() -> None:
    """Nothing is nothing; what does not fit is refused before it is written."""
    request = Request(name="a", kind=Kind.ALLREDUCE, dtype="float32", shape=(0,))
    tensor = torch.zeros(2)

    assert small.reduce(request, [b"", b""]) == b""
    small.from_bytes(torch.empty(0), b"")
    with pytest.raises(ValueError, match="12 bytes for a tensor of 8"):
        small.from_bytes(tensor, bytes(12))
