"""Ranks that meet, in threads of one process: real sockets, real waiting."""

import socket
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tlkit.runtime.core.config import Config
from tlkit.runtime.core.errors import HorovodInternalError
from tlkit.runtime.core.job_store import JobStore
from tlkit.runtime.core.meeting import Joined, meet
from tlkit.runtime.core.meeting_places import Announced, AtAddress, MeetingPlace, OnThisHost, find_place
from tlkit.runtime.core.sealing import Seal
from tlkit.runtime.core.topology import Launched
from tlkit.timeline.errors import RuntimeFailure

LAUNCHED = Launched(
    launcher="torchrun",
    rank=0,
    size=2,
    local_rank=0,
    local_size=1,
    master_address="10.0.0.1",
    master_port=29500,
    job_id="j",
)


@pytest.fixture
def name(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a meeting in a folder of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("meeting")))
    return "a meeting"


def gather(ranks: list[tuple[int, MeetingPlace]], size: int, timeout_s: float = 20.0) -> list[Joined | str]:
    """What each rank has joined, or why it could not."""
    outcomes: list[Joined | str] = [""] * len(ranks)

    def run(index: int, rank: int, place: MeetingPlace) -> None:
        launched = replace(LAUNCHED, rank=rank, size=size, local_rank=rank)
        try:
            outcomes[index] = meet(place, launched, Config(start_timeout_s=timeout_s), [])
        except RuntimeFailure as error:
            outcomes[index] = str(error)

    threads = [threading.Thread(target=run, args=(index, *each)) for index, each in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def leave(outcomes: list[Joined | str]) -> None:
    for outcome in reversed(outcomes):
        if isinstance(outcome, Joined):
            outcome.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Posted:
    """A board that is a dictionary; the first reader finds an address of an earlier start, where nobody listens."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._stale = [f"127.0.0.1\n{free_port()}"]
        self._is_set = threading.Event()

    def set(self, key: str, value: str, /) -> None:
        self._values[key] = value
        self._is_set.set()

    def get(self, key: str, /) -> bytes:
        if self._stale:
            return self._stale.pop().encode()
        self._is_set.wait(10)
        return self._values[key].encode()


@pytest.mark.parametrize(
    "make",
    [
        lambda: OnThisHost("a meeting", ""),
        lambda: AtAddress("127.0.0.1", free_port(), "secret", "realm", 10.0),
        lambda: Announced(Posted(), "127.0.0.1", "secret", "realm", 10.0),
    ],
    ids=["within a host", "at an address", "announced"],
)
def test_all_ranks_meet_and_share_what_they_need(name: str, make: Callable[[], MeetingPlace]) -> None:
    """Whichever comes first."""
    place = make()
    outcomes = gather([(2, place), (0, place), (1, place)], 3)
    joined = [outcome for outcome in outcomes if isinstance(outcome, Joined)]

    assert len(joined) == 3, outcomes
    assert len({tuple(each.welcome.hosts) for each in joined}) == 1
    assert sorted(joined[1].channels) == [1, 2]
    joined[0].store.set("from 2", b"\x00\xff")
    assert joined[2].store.get("from 2", 5.0) == b"\x00\xff"
    assert bytes(joined[1].seal.open(joined[2].seal.close(b"from 1"))) == b"from 1"
    leave(outcomes)


def test_a_rank_that_does_not_come_is_named(name: str) -> None:
    """And who has come hears that it is over."""
    place = OnThisHost(name, "")
    outcomes = gather([(0, place), (2, place)], 3, timeout_s=1.0)

    assert "ranks [1] did not connect within 1 s" in str(outcomes[0])
    assert "rank 0" in str(outcomes[1])


def test_a_second_process_of_the_same_rank_is_refused_with_the_reason(name: str) -> None:
    """The first stays."""
    place = OnThisHost(name, "")
    outcomes = gather([(0, place), (1, place), (1, place), (5, place)], 3, timeout_s=2.0)

    assert "ranks [2] did not connect" in str(outcomes[0])
    assert any("another process is rank 1 already" in str(outcome) for outcome in outcomes[1:3])
    assert outcomes[3] == "there is no rank 5 among 3"


def test_ranks_with_different_secrets_do_not_meet(name: str) -> None:
    """The sentence says which variable it is."""
    outcomes = gather([(0, OnThisHost(name, "one")), (1, OnThisHost(name, "another"))], 2, timeout_s=2.0)

    assert "TLKIT_JOB_SECRET has to be the same on all ranks" in str(outcomes[1])
    assert "ranks [1] did not connect" in str(outcomes[0])


def test_across_hosts_a_secret_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of MASTER_PORT is not even opened; within a host none is needed."""
    monkeypatch.delenv("TLKIT_JOB_SECRET", raising=False)

    def open_board() -> Posted:
        raise AssertionError("nothing to announce yet")

    with pytest.raises(RuntimeFailure, match="set TLKIT_JOB_SECRET to the same random text"):
        find_place(LAUNCHED, 1.0, None, open_board)
    within = replace(LAUNCHED, local_size=2)
    assert isinstance(find_place(within, 1.0, None, open_board), OnThisHost)
    monkeypatch.setenv("TLKIT_JOB_SECRET", "secret")
    by_us = replace(LAUNCHED, launcher="tl-run")
    assert isinstance(find_place(by_us, 1.0, None, open_board), AtAddress)
    with pytest.raises(RuntimeFailure, match="set MASTER_ADDR to its host"):
        find_place(replace(LAUNCHED, master_port=None), 1.0, None, open_board)


def test_a_key_is_waited_for_and_numbers_add_up() -> None:
    """Any thread may ask while another waits."""
    ours, theirs = socket.socketpair()
    first, second = JobStore.serve([theirs]), JobStore(ours)
    found: list[bytes] = []
    waiter = threading.Thread(target=lambda: found.append(second.get("late", 10.0)))
    waiter.start()
    assert second.add("count", 2) == 2
    assert first.add("count", 3) == 5
    with pytest.raises(TimeoutError):
        first.get("never", 0.01)
    assert not first.check(["late", "count"])
    first.set("late", "value")
    waiter.join()
    assert found == [b"value"]
    assert second.check(["late", "count"])
    assert second.delete("late")
    assert not second.delete("late")
    first.close()
    with pytest.raises(RuntimeFailure, match="rank 0 keeps no keys any more"):
        second.set("late", "value")
    second.close()


def test_a_seal_breaks_with_any_change() -> None:
    """And is one job's."""
    sealed = Seal(b"key").close(b"payload")

    assert bytes(Seal(b"key").open(sealed)) == b"payload"
    for damaged in (sealed[:-1], sealed + b"x", bytes([sealed[0] ^ 1]) + sealed[1:], b""):
        with pytest.raises(HorovodInternalError, match="does not carry the seal"):
            Seal(b"key").open(damaged)
    with pytest.raises(HorovodInternalError):
        Seal(b"other").open(sealed)
