"""Two processes prove to each other that they belong to one job, before either reads anything else.

Both know a key, which is never sent.  Each sends random bytes, and answers with an HMAC over what both have sent and over the
place where they meet, so that an answer is of no use at another time or place.  All three messages have fixed lengths: a
stranger can make the other side hold a hundred bytes, and nothing of what he says is parsed.

    listener -> caller   greeting: magic, version of tlkit, digest of the messages, nonce
    caller -> listener   the same of its own, what it comes for, its rank, HMAC
    listener -> caller   verdict, HMAC
"""

import hashlib
import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Final

import msgspec

from ... import __version__
from ...timeline.errors import RuntimeFailure
from .control import messages

#: The job's secret: any text that is the same on all ranks and known to nobody else.
SECRET_VARIABLE: Final = "TLKIT_JOB_SECRET"  # noqa: S105  the variable's name

#: Changes with the layout of the handshake itself.
_MAGIC: Final = b"tlkit\x00\x00\x01"

#: magic, version as text, digest of the messages, nonce
_GREETING: Final = struct.Struct("!8s24s8s32s")
#: what for, rank, which process
_CLAIM: Final = struct.Struct("!ii8s")
_MAC_NBYTES: Final = 32
_VERDICT_NBYTES: Final = 1 + _MAC_NBYTES
ANSWER_NBYTES: Final = _GREETING.size + _CLAIM.size + _MAC_NBYTES


class NotOfThisJob(Exception):
    """The other side has not proved that it belongs to the job."""


class Purpose(IntEnum):
    """What a connection is for."""

    CONTROL = 1
    STORE = 2
    LAUNCHER = 3
    DATA = 4


class _Verdict(IntEnum):
    WELCOME = 1
    OTHER_VERSION = 2


@dataclass(frozen=True, slots=True)
class Proof:
    """What the two sides have to know."""

    key: bytes
    place: str
    """Where they meet, in the words in which all were told: who passes connections on is somewhere else."""

    @staticmethod
    def of(secret: str, place: str, realm: str) -> "Proof":
        """A proof of knowing `secret`, good for one place and one use of it."""
        return Proof(hmac.digest(secret.encode(), f"tlkit {realm}".encode(), "sha256"), place)

    def mac(self, role: bytes, transcript: bytes) -> bytes:
        """What one of the two sides answers."""
        place = hashlib.sha256(self.place.encode()).digest()
        return hmac.digest(self.key, role + place + transcript, "sha256")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a caller has said, and proved to be entitled to say."""

    purpose: Purpose
    rank: int
    process: bytes
    """Random, the same in all connections of a process for one meeting."""
    version: str
    """Of its tlkit."""
    fits: bool
    """Whether it speaks as this process does."""


@cache
def _messages_digest() -> bytes:
    """Changes with any change of the messages between ranks."""
    kinds = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    described = [(kind.__name__, kind.__struct_config__.tag, sorted(kind.__annotations__.items())) for kind in kinds]
    return hashlib.sha256(repr(described).encode()).digest()[:8]


def greeting() -> bytes:
    """What either side begins with."""
    version = __version__.encode()[:24]
    return _GREETING.pack(_MAGIC, version, _messages_digest(), secrets.token_bytes(32))


def _is_greeting(data: bytes) -> bool:
    return data[: len(_MAGIC)] == _MAGIC


def _version_in(data: bytes) -> str:
    text = _GREETING.unpack(data)[1].rstrip(b"\x00").decode("ascii", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _fits(data: bytes) -> bool:
    _, version, digest, _ = _GREETING.unpack(data)
    return (version.rstrip(b"\x00"), digest) == (__version__.encode()[:24], _messages_digest())


def examine(proof: Proof, greeted: bytes, answer: bytes) -> tuple[Claim, bytes] | None:
    """For the listener: what a caller claims, and the verdict to send; None for one who has proved nothing.

    Args:
        greeted: what this side has sent.
        answer: `ANSWER_NBYTES` bytes.
    """
    said, mac = answer[:-_MAC_NBYTES], answer[-_MAC_NBYTES:]
    theirs = said[: _GREETING.size]
    if not _is_greeting(theirs) or not hmac.compare_digest(mac, proof.mac(b"caller", greeted + said)):
        return None
    purpose, rank, process = _CLAIM.unpack(said[_GREETING.size :])
    try:
        claim = Claim(Purpose(purpose), rank, process, _version_in(theirs), _fits(theirs))
    except ValueError:
        return None
    verdict = bytes([_Verdict.WELCOME if claim.fits else _Verdict.OTHER_VERSION])
    return claim, verdict + proof.mac(b"listener", greeted + answer + verdict)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a rank, in one of its meetings."""

    rank: int
    process: bytes = field(default_factory=lambda: secrets.token_bytes(8))


def introduce(connection: socket.socket, proof: Proof, purpose: Purpose, caller: Caller, timeout_s: float) -> None:
    """For the caller: prove that this process belongs to the job, and see that the listener does.

    Raises:
        NotOfThisJob: the listener has not proved it, or did not believe us.
        RuntimeFailure: the two do not fit together.
        OSError: it does not answer in time, or closed before it had greeted.
    """
    deadline = time.monotonic() + timeout_s
    greeted = _receive(connection, _GREETING.size, deadline)
    if not _is_greeting(greeted):
        raise NotOfThisJob(
            "the process that listens there is not a rank of tlkit, or its version is too old or too new"
        )
    said = greeting() + _CLAIM.pack(purpose, caller.rank, caller.process)
    answer = said + proof.mac(b"caller", greeted + said)
    connection.sendall(answer)
    try:
        verdict = _receive(connection, _VERDICT_NBYTES, deadline)
    except (ConnectionError, TimeoutError) as error:
        raise NotOfThisJob("it refuses this process") from error
    if not hmac.compare_digest(verdict[1:], proof.mac(b"listener", greeted + answer + verdict[:1])):
        raise NotOfThisJob("the process that listens there does not belong to this job")
    if verdict[0] != _Verdict.WELCOME:
        raise RuntimeFailure(versions_differ("the listener", _version_in(greeted)))


def versions_differ(who: str, version: str) -> str:
    """The sentence for two processes that do not speak the same protocol."""
    if version == __version__:
        return f"{who} runs another build of tlkit {version} than this process: install the same on all hosts"
    return f"{who} runs tlkit {version} and this process {__version__}: install the same version on all hosts"


def _receive(connection: socket.socket, nbytes: int, deadline: float) -> bytes:
    received = b""
    while len(received) < nbytes:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        data = connection.recv(nbytes - len(received))
        if not data:
            raise ConnectionResetError("the connection was closed")
        received += data
    return received
