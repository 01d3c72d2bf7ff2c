"""The connections of the control plane: made, and let in."""

import hmac
import socket
import time

from ...timeline.errors import RuntimeFailure
from .control.channel import Channel
from .control.messages import Hello


def listen(address: str) -> socket.socket:
    """A listening socket on a free port of `address`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((address, 0))
    listener.listen(1024)
    return listener


def connect(address: str, port: int, timeout_s: float) -> Channel:
    """Connect to the coordinator.

    Raises:
        RuntimeFailure: it does not answer.
    """
    try:
        return Channel(socket.create_connection((address, port), timeout=timeout_s))
    except OSError as error:
        raise RuntimeFailure(
            f"the coordinator at {address}:{port} does not answer ({error}): check the network between the hosts, "
            "or name the interface in HOROVOD_GLOO_IFACE"
        ) from error


def accept_ranks(listener: socket.socket, size: int, token: str, timeout_s: float) -> dict[int, tuple[Channel, Hello]]:
    """Wait until ranks 1 to size-1 have connected and said the token.

    A connection that says anything else is closed and ignored.

    Raises:
        RuntimeFailure: not all came in time; names the missing ones.
    """
    deadline = time.monotonic() + timeout_s
    found: dict[int, tuple[Channel, Hello]] = {}
    while len(found) < size - 1:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            missing = sorted(set(range(1, size)) - set(found))
            raise RuntimeFailure(
                f"ranks {missing} did not connect within {timeout_s:g} s: look at their output for an earlier error, or "
                "raise HOROVOD_START_TIMEOUT"
            )
        listener.settimeout(left_s)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        channel = Channel(connection)
        try:
            hello = channel.receive_one(min(left_s, 5.0))
        except (OSError, ValueError):
            channel.close()
            continue
        if (
            not isinstance(hello, Hello)
            or not hmac.compare_digest(hello.token.encode(), token.encode())
            or not 0 < hello.rank < size
            or hello.rank in found
        ):
            channel.close()
            continue
        found[hello.rank] = (channel, hello)
    return found
