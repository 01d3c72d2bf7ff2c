"""Collectives through shared memory: ranks in threads, which wait and copy without the interpreter's lock, as processes do."""

import json
import mmap
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tlkit.runtime.core.binding import Place
from tlkit.runtime.torch.data_plane.transports.shared_memory import memory

compiled: Any = memory.load_compiled()
pytestmark = pytest.mark.skipif(not memory.is_built(), reason="not compiled here")

OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}


def in_threads(size: int, run: Callable[[int], None]) -> list[BaseException]:
    """Have every rank do something; returns what they raised."""
    raised: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            run(rank)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def segments(size: int, slot_nbytes: int, timeout_s: float = 60.0) -> list[Any]:
    """A place for each rank."""
    shared = mmap.mmap(-1, compiled.nbytes_for(size, slot_nbytes))
    return [compiled.Segment(shared, rank, size, slot_nbytes, timeout_s) for rank in range(size)]


def run_all(size: int, run: Callable[[int], None]) -> None:
    """As `in_threads`, without a fault."""
    raised = in_threads(size, run)
    if raised:
        raise raised[0]


def values_of(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings."""
    made = torch.Generator().manual_seed(rank)
    return (torch.rand(count, generator=made) * 8 - 4).to(dtype)


SIZES = st.integers(2, 6)
SLOTS = st.sampled_from([384, 512, 4096])


@given(size=SIZES, slot=SLOTS, counts=st.lists(st.integers(0, 3000), min_size=1, max_size=4), data=st.data())
def test_all_ranks_get_the_reduction_in_the_order_of_ranks(
    size: int, slot: int, counts: Sequence[int], data: st.DataObject
) -> None:
    """To the last bit, whatever the size, one after another."""
    ranks = segments(size, slot)
    for count in counts:
        name, op = data.draw(st.sampled_from(sorted(DTYPES))), data.draw(st.sampled_from(sorted(OPERATIONS)))
        brought = [values_of(rank, count, DTYPES[name]) for rank in range(size)]
        expected = brought[0]
        for each in brought[1:]:
            expected = OPERATIONS[op](expected, each)
        results = [each.clone() for each in brought]

        def reduce(rank: int, name: str = name, op: str = op, results: Sequence[torch.Tensor] = results) -> None:
            ranks[rank].allreduce(results[rank].data_ptr(), results[rank].numel(), name, op)

        run_all(size, reduce)
        for result in results:
            assert torch.equal(result, expected)


@given(size=SIZES, slot=SLOTS, data=st.data())
def test_bytes_come_where_they_belong(size: int, slot: int, data: st.DataObject) -> None:
    """Gathered, broadcast, exchanged and scattered, any number of each rank's."""
    ranks = segments(size, slot)
    amount = st.integers(0, 2 * slot)
    counts = data.draw(st.lists(amount, min_size=size, max_size=size))
    root = data.draw(st.integers(0, size - 1))
    sent = [data.draw(st.lists(amount, min_size=size, max_size=size)) for _ in range(size)]
    own = [torch.full((count,), rank, dtype=torch.uint8) for rank, count in enumerate(counts)]
    gathered = [torch.zeros(sum(counts), dtype=torch.uint8) for _ in range(size)]
    told = [torch.full((counts[0],), rank, dtype=torch.uint8) for rank in range(size)]
    pieces = [
        torch.cat([torch.full((n,), 10 * r + to, dtype=torch.uint8) for to, n in enumerate(sent[r])])
        for r in range(size)
    ]
    received = [[sent[source][rank] for source in range(size)] for rank in range(size)]
    came = [torch.zeros(sum(of), dtype=torch.uint8) for of in received]
    summed = [values_of(rank, sum(counts), torch.float64) for rank in range(size)]
    total = torch.stack(summed).numpy().cumsum(axis=0)[-1]
    scattered = [torch.zeros(count, dtype=torch.float64) for count in counts]

    def run(rank: int) -> None:
        ranks[rank].allgather(gathered[rank].data_ptr(), own[rank].data_ptr(), counts)
        ranks[rank].broadcast(told[rank].data_ptr(), told[rank].nbytes, root)
        ranks[rank].alltoall(came[rank].data_ptr(), pieces[rank].data_ptr(), received[rank], sent[rank])
        ranks[rank].reducescatter(scattered[rank].data_ptr(), summed[rank].data_ptr(), counts, "float64")

    run_all(size, run)
    for rank in range(size):
        assert torch.equal(gathered[rank], torch.cat(own))
        assert (told[rank] == root).all()
        expected = [torch.full((n,), 10 * source + rank, dtype=torch.uint8) for source, n in enumerate(received[rank])]
        assert torch.equal(came[rank], torch.cat(expected))
        assert torch.equal(scattered[rank], torch.from_numpy(total)[sum(counts[:rank]) :][: counts[rank]])


def test_half_precision_is_rounded_as_torch_rounds_it() -> None:
    """Every float16 and bfloat16 there is, to itself and to others, infinite and not a number among them."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for name in ("float16", "bfloat16"):
        one = every.view(DTYPES[name])
        for shift in (0, 1, 12_345, 40_000):
            brought = [one, one.roll(shift)]
            for op in ("sum", "product"):
                expected = OPERATIONS[op](*brought)
                results = [each.clone() for each in brought]
                ranks = segments(2, 4096)
                run_all(2, lambda rank: ranks[rank].allreduce(results[rank].data_ptr(), 1 << 16, name, op))  # noqa: B023
                for result in results:
                    assert torch.equal(result.isnan(), expected.isnan())
                    assert torch.equal(result[~expected.isnan()], expected[~expected.isnan()])


def test_a_rank_that_does_not_come_is_named() -> None:
    """After the time that was given, on those that wait; and nobody takes up what was under way."""
    ranks = segments(3, 4096, timeout_s=0.2)
    values = [torch.ones(10) for _ in range(3)]

    raised = in_threads(
        3, lambda rank: None if rank == 1 else ranks[rank].allreduce(values[rank].data_ptr(), 10, "float32", "sum")
    )

    assert any("rank 1 of the process set did not come" in str(error) for error in raised)
    assert len(raised) == 2
    with pytest.raises(RuntimeError, match="given up"):
        ranks[1].allreduce(values[1].data_ptr(), 10, "float32", "sum")


def test_giving_up_wakes_those_that_wait() -> None:
    """Long before their time is over."""
    ranks = segments(2, 4096, timeout_s=600)
    value = torch.ones(10)

    def run(rank: int) -> None:
        if rank == 0:
            ranks[0].broadcast(value.data_ptr(), value.nbytes, 1)
        else:
            time.sleep(0.1)
            ranks[1].give_up()

    (error,) = in_threads(2, run)
    assert "given up" in str(error)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ((0, 1, 4096, 1.0), "no such rank"),
        ((2, 2, 4096, 1.0), "no such rank"),
        ((-1, 2, 4096, 1.0), "no such rank"),
        ((0, 2, 100, 1.0), "no such rank"),
        ((0, 2, 1 << 20, 1.0), "too small"),
    ],
)
def test_a_segment_that_makes_no_sense_is_refused(arguments: tuple[Any, ...], wrong: str) -> None:
    """Instead of being written past its end."""
    with pytest.raises(ValueError, match=wrong):
        compiled.Segment(mmap.mmap(-1, 1 << 16), *arguments)
    with pytest.raises(ValueError, match="no sum of bool"):
        segments(2, 4096)[0].allreduce(0, 0, "bool", "sum")
    with pytest.raises(ValueError, match="one size for each rank"):
        segments(2, 4096)[0].allgather(0, 0, [1, 2, 3])


class Board:
    """The job's store, within a process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        """Say something."""
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Wait until it is said."""
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, 20)
            return self._values[key]


def share_all(size: int, board: Board) -> list[Any]:
    """What each rank gets: its segment, or why there is none."""
    got: list[Any] = [None] * size

    def run(rank: int) -> None:
        place = Place(store=board, ranks=tuple(range(size)), rank=rank, number=0, timeout_s=5.0, one_host=True)
        try:
            got[rank] = memory.share(place)
        except memory.NotShared as error:
            got[rank] = str(error)

    run_all(size, run)
    return got


def test_ranks_share_one_memory_and_leave_nothing_open() -> None:
    """All see what one has written, and no descriptor stays."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    ranks = share_all(3, Board())
    values = [torch.full((5,), float(rank)) for rank in range(3)]

    run_all(3, lambda rank: ranks[rank].allreduce(values[rank].data_ptr(), 5, "float32", "sum"))

    assert [value.tolist() for value in values] == [[3.0] * 5] * 3
    ranks.clear()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class Altered(Board):
    """Somebody else answers, or the ranks see different things."""

    def __init__(self, **changed: Any) -> None:
        super().__init__()
        self._altered = changed

    def set(self, key: str, value: str) -> None:
        """Say something else."""
        super().set(key, json.dumps(json.loads(value) | self._altered) if key == "memory" else value)


@pytest.mark.parametrize(
    ("board", "why"),
    [
        (Altered(where=["another", "little", 1, 2]), "on another host"),
        (Altered(token="00" * 16), "is another file"),
        (Altered(descriptor=0), "another file|No such|Permission|not permitted|denied"),
        (Altered(process=2**22), "No such"),
        (Altered(slot_nbytes=64), "is another file"),
    ],
)
def test_all_ranks_refuse_what_one_cannot_open(board: Board, why: str) -> None:
    """They agree, so that all of them take Gloo."""
    refusals = share_all(3, board)

    assert len(set(refusals)) == 1
    assert re.search(why, refusals[0])


def test_without_a_compiler_all_ranks_agree_on_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them lacks it."""
    monkeypatch.setattr(memory, "_compiled", None)

    (refusal,) = set(share_all(2, Board()))
    assert "without a C compiler" in refusal
