"""What a rank of an elastic job asks `tl-run`: who it is now, and whether hosts have changed."""

import json
import os
import socket
from collections.abc import Mapping
from typing import Any, Final

from ...timeline.errors import RuntimeFailure
from .connections import connect_within_host, socket_path
from .handshake import SECRET_VARIABLE, Caller, NotOfThisJob, Proof, Purpose, introduce

ADDRESS: Final = "TLKIT_ELASTIC_ADDRESS"
WORKER: Final = "TLKIT_ELASTIC_WORKER"
ROUND: Final = "TLKIT_ELASTIC_ROUND"

#: How the address of a launcher on the same host begins, and what its proof is for.
WITHIN_HOST: Final = "unix:"
REALM: Final = "launcher"

_PROOF_TIMEOUT_S: Final = 30.0

_LEFT_BEHIND: Final = (
    "this rank lost the others in training, and meanwhile some of them have finished: it cannot go on without them, and "
    "what it would have done after training is missing"
)

#: How long a rank waits for the others to check in.
_TIMEOUT_S: Final = 600.0


def is_elastic(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `tl-run` may change the ranks of this job."""
    return bool(environment.get(ADDRESS))


def meeting_round() -> int | None:
    """Which meeting of the job's ranks this is; None outside an elastic job."""
    return int(os.environ.get(ROUND, "0")) if is_elastic() else None


def hosts_have_changed() -> bool:
    """Whether ranks wait to come in, or have to leave."""
    return bool(_ask({"ask": "changed", "round": meeting_round()})["changed"])


def check_in() -> None:
    """Wait until all ranks of the job have checked in, and become who the launcher says.

    Raises:
        SystemExit: this rank is not wanted any more, or training has ended.
        RuntimeFailure: the launcher does not answer.
    """
    answer = _ask({"ask": "assignment", "round": meeting_round()})
    if answer.get("removed"):
        raise SystemExit(0)
    if answer.get("over"):
        # Who has just come misses nothing; who has trained may have been the one to save.
        raise SystemExit(_LEFT_BEHIND if meeting_round() else 0)
    os.environ.update(answer["environment"])


def _ask(question: dict[str, Any]) -> dict[str, Any]:
    address = os.environ[ADDRESS]
    try:
        with _call(address) as connection:
            proof = Proof.of(os.environ.get(SECRET_VARIABLE, ""), address, REALM)
            introduce(connection, proof, Purpose.LAUNCHER, Caller(int(os.environ.get(WORKER, "-1"))), _PROOF_TIMEOUT_S)
            connection.settimeout(_TIMEOUT_S)
            connection.sendall(json.dumps(question).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile("rb").readline())
    except (OSError, ValueError, NotOfThisJob) as error:
        raise RuntimeFailure(f"tl-run does not answer at {address}: {error}; it may have been ended") from error
    return answer


def _call(address: str) -> socket.socket:
    if address.startswith(WITHIN_HOST):
        return connect_within_host(socket_path(address))
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=_PROOF_TIMEOUT_S)
