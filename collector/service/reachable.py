"""What to call this machine in an address that others open."""

import socket
from typing import Final

#: Addresses to listen at that nobody can open.
EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  recognised, not listened at
#: An address of nobody; to connect a datagram socket to it sends nothing, and says which of our addresses would be used.
_ELSEWHERE: Final = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))


def shown_host(host: str) -> str:
    """The host as an address has it; where every address is listened at, the one that others reach this machine at.

    >>> shown_host("127.0.0.1"), shown_host("::1")
    ('127.0.0.1', '[::1]')
    """
    if host in EVERYWHERE:
        host = _own_address() or socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _own_address() -> str:
    for address, family in _ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""
