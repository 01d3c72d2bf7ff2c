"""Addresses by which ranks reach each other."""

import socket
from typing import Final

LOOPBACK: Final = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether an address is this host's own, which no other host reaches."""
    return address in {"localhost", "::1"} or address.startswith("127.")


def own_address(master_address: str | None) -> str:
    """The address by which this host reaches the one where the ranks meet; "" if that is not known."""
    if not master_address or is_loopback(master_address):
        return ""
    try:
        family, kind, _, _, target = socket.getaddrinfo(master_address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""
