"""Who gets in: those who know the job's secret, and nobody else, however many knock."""

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tlkit
from tlkit.runtime.core import handshake
from tlkit.runtime.core.connections import connect_within_host, listen, listen_within_host
from tlkit.runtime.core.door import Door, Guest
from tlkit.runtime.core.handshake import ANSWER_NBYTES, Caller, NotOfThisJob, Proof, Purpose, examine, introduce
from tlkit.timeline.errors import RuntimeFailure

PROOF = Proof.of("the secret of the job", "127.0.0.1:1", "ranks")


class Opened:
    """A door on this host, by TCP."""

    def __init__(self) -> None:
        listener = listen("127.0.0.1")
        self.address: tuple[str, int] = listener.getsockname()
        self.door = Door([(listener, PROOF)])

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=10)

    def knock(self, proof: Proof, caller: Caller, failures: list[Exception]) -> threading.Thread:
        """Try to get in, in a thread of its own."""

        def run() -> None:
            with self.connect() as connection:
                try:
                    introduce(connection, proof, Purpose.CONTROL, caller, 10.0)
                except (NotOfThisJob, RuntimeFailure) as error:
                    failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    with made.door:
        yield made


def let_in(opened: Opened, proof: Proof = PROOF) -> tuple[list[Guest], list[Exception]]:
    failures: list[Exception] = []
    thread = opened.knock(proof, Caller(3, b"8 bytes."), failures)
    guests: list[Guest] = []
    while not guests and thread.is_alive():
        guests = opened.door.wait(0.05)
    thread.join()
    for guest in guests:
        guest.connection.close()
    return guests, failures


def test_who_knows_the_secret_gets_in(opened: Opened) -> None:
    """And says what for and who it is."""
    guests, failures = let_in(opened)

    assert failures == []
    assert [guest.claim for guest in guests] == [
        handshake.Claim(Purpose.CONTROL, 3, b"8 bytes.", tlkit.__version__, fits=True)
    ]


@pytest.mark.parametrize(
    "proof",
    [
        pytest.param(Proof.of("another secret", PROOF.place, "ranks"), id="another job"),
        pytest.param(Proof.of("the secret of the job", PROOF.place, "launcher"), id="another purpose"),
        pytest.param(Proof.of("the secret of the job", "10.0.0.1:1", "ranks"), id="passed on from another place"),
    ],
)
def test_nobody_else_does(opened: Opened, proof: Proof) -> None:
    """Not even who passes on what a rank has said to him; and the door stays open for the others."""
    guests, failures = let_in(opened, proof)
    assert guests == []
    assert [type(failure) for failure in failures] == [NotOfThisJob]

    assert len(let_in(opened)[0]) == 1


def test_an_answer_is_good_for_one_connection() -> None:
    """Who has overheard it cannot use it again."""
    greeted = handshake.greeting()
    said = handshake.greeting() + handshake._CLAIM.pack(Purpose.CONTROL, 1, b"8 bytes.")
    answer = said + PROOF.mac(b"caller", greeted + said)

    assert examine(PROOF, greeted, answer) is not None
    assert examine(PROOF, handshake.greeting(), answer) is None
    assert examine(PROOF, greeted, answer[:-1] + bytes([answer[-1] ^ 1])) is None


def test_a_listener_that_does_not_know_the_secret_is_noticed() -> None:
    """A caller says nothing of the job to it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(handshake.greeting() + bytes([1]) + secrets.token_bytes(32))
        with pytest.raises(NotOfThisJob, match="does not belong to this job"):
            introduce(ours, PROOF, Purpose.CONTROL, Caller(1), 5.0)


def test_silence_and_noise_cost_little_and_delay_nobody(opened: Opened) -> None:
    """Of what strangers say no more is held than an answer has; there may be many of them."""
    silent = [opened.connect() for _ in range(200)]
    noisy = [opened.connect() for _ in range(20)]
    for connection in noisy:
        connection.sendall(b"\x98\xa5hello" + b"\x91" * 100_000)
    shy = opened.connect()
    shy.sendall(b"t" * (ANSWER_NBYTES - 1))

    assert len(let_in(opened)[0]) == 1
    assert max(len(caller.received) for caller in opened.door._callers.values()) < ANSWER_NBYTES
    for connection in (*silent, *noisy, shy):
        connection.close()


def test_two_versions_refuse_each_other_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides, before either reads a message of the other."""
    greeted = handshake.greeting()
    monkeypatch.setattr(handshake, "__version__", "9.9.9")
    said = handshake.greeting() + handshake._CLAIM.pack(Purpose.CONTROL, 1, b"8 bytes.")
    answer = said + PROOF.mac(b"caller", greeted + said)
    monkeypatch.undo()
    found = examine(PROOF, greeted, answer)
    assert found is not None
    claim, verdict = found
    assert (claim.version, claim.fits) == ("9.9.9", False)

    with pytest.raises(RuntimeFailure, match="install the same version on all hosts"):
        _caller_hears(greeted, verdict, monkeypatch)


def _caller_hears(greeted: bytes, verdict: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a caller of version 9.9.9 hear that it does not fit."""
    monkeypatch.setattr(handshake, "__version__", "9.9.9")
    ours, theirs = socket.socketpair()

    def listen_once() -> None:
        theirs.sendall(greeted)
        answer = b""
        while len(answer) < ANSWER_NBYTES:
            answer += theirs.recv(ANSWER_NBYTES)
        theirs.sendall(verdict[:1] + PROOF.mac(b"listener", greeted + answer + verdict[:1]))

    thread = threading.Thread(target=listen_once)
    thread.start()
    try:
        introduce(ours, PROOF, Purpose.CONTROL, Caller(1), 5.0)
    finally:
        thread.join()
        ours.close()
        theirs.close()


def test_a_long_path_does_not_matter(tmp_path: Path) -> None:
    """The kernel takes 107 bytes of it."""
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with listen_within_host(folder / "place", 1.0) as listener:
        connection = connect_within_host(folder / "place")
        accepted, _ = listener.accept()
        accepted.close()
        connection.close()

    assert list(folder.iterdir()) == []


def test_one_process_listens_at_a_place(tmp_path: Path) -> None:
    """Ranks of two jobs with the same name would mix; what a killed process has left does not count."""
    path = tmp_path / "place"
    (tmp_path / "place.lock").touch()
    path.touch()
    with (
        listen_within_host(path, 1.0),
        pytest.raises(RuntimeFailure, match="another job of yours"),
        listen_within_host(path, 0.1),
    ):
        pass
    with listen_within_host(path, 1.0):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_host_is_not_even_greeted(tmp_path: Path) -> None:
    """Not where he can reach the socket, by whatever mistake; elsewhere he cannot."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o111)
    path = tmp_path / "place"
    with listen_within_host(path, 1.0) as listener, Door([(listener, PROOF)]) as door:
        path.chmod(0o777)
        child = os.fork()
        if child == 0:
            os._exit(_knock_as_nobody(str(path)))
        door.wait(1.0)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


def _knock_as_nobody(path: str) -> int:
    """0 if the connection was closed without a word."""
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(path)
            try:
                return 1 if connection.recv(100) else 0
            except ConnectionResetError:
                return 0
    except BaseException:
        return 2
