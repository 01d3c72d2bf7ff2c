"""Messages between ranks: none is lost, whatever comes together, and whatever comes before its time."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tlkit.runtime.core.control.channel import Channel
from tlkit.runtime.core.control.clock_sync import EXCHANGES, measure
from tlkit.runtime.core.control.messages import Abort, ClockPing, ClockPong, Goodbye, Message, Work, encode
from tlkit.timeline.errors import RuntimeFailure

Ends = tuple[Channel, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A channel, and the bare socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one, other = socket.create_connection(server.getsockname()), server.accept()[0]
    channel = Channel(one)
    yield channel, other
    channel.close()
    other.close()


def framed(*messages: Message, first: int = 0) -> bytes:
    """Messages as they lie on the wire, the first of them with this number."""
    payloads = [encode(message) for message in messages]
    return b"".join(
        struct.pack("!II", len(payload), number) + payload for number, payload in enumerate(payloads, first)
    )


def test_what_comes_in_one_piece_is_received_one_by_one(ends: Ends) -> None:
    channel, other = ends
    sent: list[Message] = [ClockPong(1, 2), Goodbye("first"), Goodbye("second")]
    other.sendall(framed(*sent))
    time.sleep(0.05)
    assert channel.receive_one(1.0) == sent[0]
    assert channel.receive_one(1.0) == sent[1]
    assert channel.take_kept() == sent[2:]
    with pytest.raises(TimeoutError):
        channel.receive_one(0.01)


@pytest.mark.parametrize("rest", [b" " * 8, b"a" * 500, bytes(20)])
def test_bytes_that_begin_no_message_are_noticed_at_once(ends: Ends, rest: bytes) -> None:
    """Taken for a length, they would be waited for as long as that says."""
    channel, other = ends
    other.sendall(framed(Goodbye("first")) + rest)
    time.sleep(0.05)
    with pytest.raises(ValueError, match="message 1 is missing, or another came twice"):
        channel.receive()


def answer_pings(other: socket.socket, answers: Callable[[int, ClockPing], list[Message]]) -> threading.Thread:
    """A coordinator that answers the n-th ping with what `answers` says."""

    def serve() -> None:
        coordinator, said = Channel(other.dup()), 0
        for number in range(EXCHANGES):
            try:
                ping = coordinator.receive_one(5.0)
                assert isinstance(ping, ClockPing)
                messages = answers(number, ping)
                other.sendall(framed(*messages, first=said))
                said += len(messages)
            except OSError:
                break
        coordinator.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("before", [True, False])
def test_what_the_coordinator_says_to_ranks_that_are_ahead_is_heard_later(ends: Ends, before: bool) -> None:
    """Another rank has shut down, or the tuner has spoken, while this one still compares its clock."""
    channel, other = ends
    early: list[Message] = [Work([], cycle_time_s=0.002), Goodbye("rank 1 has shut down")]

    def answers(number: int, ping: ClockPing) -> list[Message]:
        pong: list[Message] = [ClockPong(ping.sent_ns, time.monotonic_ns() + 10**9)]
        said = {3: early[:1], 7: early[1:]}.get(number, [])
        return said + pong if before else pong + said

    thread = answer_pings(other, answers)
    clock = measure(channel, same_host=False, timeout_s=5.0)
    thread.join()
    assert abs(clock.offset_ns - 10**9) <= clock.uncertainty_ns
    assert channel.take_kept() == early


def test_a_job_that_has_failed_ends_the_start(ends: Ends) -> None:
    channel, other = ends
    thread = answer_pings(other, lambda _, ping: [Abort("rank 2 on far is gone")])
    with pytest.raises(RuntimeFailure, match="failed while it started: rank 2 on far is gone"):
        measure(channel, same_host=False, timeout_s=5.0)
    channel.close()
    thread.join()


def test_nobody_waits_for_an_end_that_does_not_read(ends: Ends) -> None:
    """What is posted is kept, in order, and goes out when there is room."""
    channel, other = ends
    words = [Goodbye(letter * 3_000_000) for letter in "abc"]
    for word in words:
        channel.post(encode(word))
    assert channel.backlog_nbytes > 0
    receiver = Channel(other.dup())
    heard: list[Message] = []
    while len(heard) < len(words):
        channel.flush()
        heard += receiver.receive()
    receiver.close()
    assert heard == words
    assert channel.backlog_nbytes == 0


@pytest.mark.parametrize("numbers", [[0, 0], [0, 2]])
def test_a_message_that_comes_twice_or_not_at_all_is_noticed(ends: Ends, numbers: list[int]) -> None:
    channel, other = ends
    for number in numbers:
        other.sendall(framed(Goodbye("once"), first=number))
    time.sleep(0.05)
    with pytest.raises(ValueError, match="message 1 is missing, or another came twice"):
        channel.receive()
