"""Two hosts on one machine: network namespaces joined by a cable, which can be made slow."""

import contextlib
import subprocess
from collections.abc import Iterator

ADDRESSES = ("10.213.78.1", "10.213.78.2")
_NAMES = tuple(f"tldiag-{address}" for address in ADDRESSES)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def remove() -> None:
    """Take the hosts away, as far as they are there."""
    for name in _NAMES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextlib.contextmanager
def two_hosts(limit: str = "") -> Iterator[dict[str, str]]:
    """Make them; yields the environment with which tl-run starts ranks there.

    Args:
        limit: what `tc qdisc add dev … root` is given at both ends; "" for a cable as fast as memory.
    """
    remove()
    try:
        for name in _NAMES:
            _ip("netns", "add", name)
        _ip("link", "add", "tldiag1", "netns", _NAMES[0], "type", "veth", "peer", "name", "tldiag2", "netns", _NAMES[1])
        for number, (name, address) in enumerate(zip(_NAMES, ADDRESSES, strict=True), start=1):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", f"tldiag{number}")
            _ip("-n", name, "link", "set", f"tldiag{number}", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            if limit:
                command = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", f"tldiag{number}", "root"]
                subprocess.run([*command, *limit.split()], check=True, capture_output=True)
        yield {"TLKIT_REMOTE_SHELL": "ip netns exec tldiag-{host}"}
    finally:
        remove()
