"""Two ranks that add up over a connection of their own: ranks in threads, which move and add without the interpreter's lock."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tlkit.runtime.core.binding import Place
from tlkit.runtime.core.operations import ReduceOp
from tlkit.runtime.torch.data_plane.transports.pair import connection

pytestmark = pytest.mark.skipif(connection.load_compiled() is None, reason="not compiled here")

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def in_both(run: Callable[[int], None]) -> list[BaseException]:
    """Have both ranks do something; returns what they raised."""
    raised: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            run(rank)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@contextmanager
def connected(timeout_s: float = 60.0) -> Iterator[list[connection.Pair]]:
    """Both ends, with little room on the way, so that a sum takes many turns."""
    sockets = socket.socketpair()
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    pairs = [connection.Pair(each, rank, timeout_s) for rank, each in enumerate(sockets)]
    try:
        yield pairs
    finally:
        for pair in pairs:
            pair.close()


def values_of(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings."""
    made = torch.Generator().manual_seed(rank)
    return (torch.rand(count, generator=made) * 200 - 100).to(dtype)


@given(dtype=st.sampled_from(DTYPES), counts=st.lists(st.integers(0, 300_000), min_size=1, max_size=3))
def test_both_get_the_sum(dtype: torch.dtype, counts: list[int]) -> None:
    """The one that torch computes, bit for bit, also where it does not fit into what is on the way; one after the other."""
    with connected() as pairs:
        brought = [[values_of(rank + 2 * turn, count, dtype) for turn, count in enumerate(counts)] for rank in range(2)]
        expected = [first + second for first, second in zip(*brought, strict=True)]

        def run(rank: int) -> None:
            for values in brought[rank]:
                pairs[rank].allreduce(values, ReduceOp.SUM)

        assert in_both(run) == []
        for rank in range(2):
            assert all(torch.equal(got, wanted) for got, wanted in zip(brought[rank], expected, strict=True))


def test_what_is_no_number_is_the_same_on_both() -> None:
    """Which of two operands such a sum takes after depends on their order."""
    with connected() as pairs:
        brought = [torch.tensor([bits] * 9, dtype=torch.int32).view(torch.float32) for bits in (0x7FC00001, 0x7FC00002)]

        assert in_both(lambda rank: pairs[rank].allreduce(brought[rank], ReduceOp.SUM)) == []
        assert torch.equal(brought[0].view(torch.int32), brought[1].view(torch.int32))


def test_only_what_can_be_added_is_taken() -> None:
    """The rest is the transport's."""
    assert connection.Pair.takes(torch.ones(1), ReduceOp.SUM)
    assert not connection.Pair.takes(torch.ones(1), ReduceOp.MAX)
    assert not connection.Pair.takes(torch.ones(1, dtype=torch.uint8), ReduceOp.SUM)
    assert not connection.Pair.takes(torch.ones(1, device="meta"), ReduceOp.SUM)


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever() -> None:
    """The time begins anew with all that comes."""
    with connected(0.2) as pairs:
        begun = time.monotonic()
        with pytest.raises(RuntimeError, match="did not send within 0 s"):
            pairs[0].allreduce(torch.ones(100), ReduceOp.SUM)
        assert time.monotonic() - begun >= 0.2


@pytest.mark.parametrize("count", [0, 10, 10_000_000])
def test_a_sum_under_way_ends_when_either_end_is_cut(count: int) -> None:
    """Also where this end is cut, by another thread, and in the middle of sending."""
    for end in range(2):
        with connected() as pairs:
            timer = threading.Timer(0.05, pairs[end].cut)
            timer.start()
            if count:
                with pytest.raises(RuntimeError, match="has closed its connection"):
                    pairs[0].allreduce(torch.ones(count), ReduceOp.SUM)
            else:
                pairs[0].allreduce(torch.ones(count), ReduceOp.SUM)
            timer.join()


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

    def check(self, keys: list[str]) -> bool:
        """Whether all of it is said."""
        with self._changed:
            return all(key in self._values for key in keys)


def open_both(board: Board, **place: Any) -> list[connection.Pair | None]:
    """What each rank gets."""
    got: list[connection.Pair | None] = [None, None]
    given = {"loopback": True} | place

    def run(rank: int) -> None:
        got[rank] = connection.open_pair(Place(store=board, ranks=(0, 1), rank=rank, number=0, timeout_s=20.0, **given))

    raised = in_both(run)
    if raised:
        raise raised[0]
    return got


@pytest.mark.parametrize("place", [{}, {"interface": "lo"}, {"loopback": False, "address": "127.0.0.1"}])
def test_two_ranks_come_to_a_connection_and_leave_nothing_open(place: dict[str, Any]) -> None:
    """At the interface that the user names, or at the address by which the host is known."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    pairs = open_both(Board(), **place)
    values = [torch.full((5,), float(rank + 1)) for rank in range(2)]

    def run(rank: int) -> None:
        pair = pairs[rank]
        assert pair is not None
        pair.allreduce(values[rank], ReduceOp.SUM)
        pair.close()

    assert in_both(run) == []
    assert [value.tolist() for value in values] == [[3.0] * 5] * 2
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class Watched(Board):
    """Somebody else hears where the first rank listens, and is there sooner."""

    def __init__(self) -> None:
        super().__init__()
        self.strangers: list[socket.socket] = []

    def set(self, key: str, value: str) -> None:
        """Say something."""
        if key == "pair":
            told = json.loads(value)
            for _ in range(20):
                self.strangers.append(socket.create_connection((told["address"], told["port"]), 5))
            self.strangers[0].sendall(bytes(4096))
        super().set(key, value)


def test_strangers_do_not_take_the_place_of_the_other_rank() -> None:
    """Neither those that say something, nor those that say nothing and are there first."""
    board = Watched()
    pairs = open_both(board)
    values = [torch.ones(1000), torch.ones(1000)]

    def run(rank: int) -> None:
        pair = pairs[rank]
        assert pair is not None
        pair.allreduce(values[rank], ReduceOp.SUM)
        pair.close()

    assert in_both(run) == []
    assert torch.equal(values[0], torch.full((1000,), 2.0))
    for stranger in board.strangers:
        stranger.close()


class Altered(Board):
    """Somebody else answers."""

    def __init__(self, **changed: Any) -> None:
        super().__init__()
        self._altered = changed

    def set(self, key: str, value: str) -> None:
        """Say something else."""
        super().set(key, json.dumps(json.loads(value) | self._altered) if key == "pair" else value)


@pytest.mark.parametrize(
    ("board", "place", "why"),
    [
        (Altered(secret="another"), {}, "refuses this process"),
        (Altered(port=1), {}, "refused"),
        (Board(), {"interface": "no-such-net0"}, "No such device"),
        (Board(), {"loopback": False, "address": "192.0.2.256"}, "cannot listen"),
    ],
)
def test_both_do_without_where_one_cannot_connect(board: Board, place: dict[str, Any], why: str) -> None:
    """They agree, so that both use the transport's own means."""
    assert open_both(board, **place) == [None, None]
    assert re.search(why, board.get("pair/agreed").decode())


def test_both_do_without_where_it_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them lacks it."""
    monkeypatch.setattr(connection, "_compiled", None)
    board = Board()

    assert open_both(board) == [None, None]
    assert "without a C compiler" in board.get("pair/agreed").decode()
