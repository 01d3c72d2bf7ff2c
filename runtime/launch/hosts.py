"""Host lists: `-H a:2,b:2` and host files."""

import fcntl
import ipaddress
import re
import socket
import struct
from pathlib import Path
from typing import Final

from ...timeline.errors import UsageError

_ENTRY: Final = re.compile(r"^([\w.-]+|\[[0-9a-fA-F:.]+\])(?::(\d+))?$")

_SIOCGIFADDR: Final = 0x8915


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Hosts and slots of a list such as `localhost:4`; a bare name has one slot.

    Raises:
        UsageError: an entry has another form.

    >>> parse_hosts("a:2,b")
    [('a', 2), ('b', 1)]
    """
    hosts = []
    for entry in text.split(","):
        match = _ENTRY.match(entry.strip())
        if match is None:
            raise UsageError(
                f"{entry!r}: Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."
            )
        hosts.append((match.group(1).strip("[]"), int(match.group(2) or 1)))
    return hosts


def read_hostfile(path: str) -> list[tuple[str, int]]:
    """Hosts and slots of a file with a line `name slots=N` a host; blank lines and comments are skipped.

    Raises:
        UsageError: it cannot be read, or a line has another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the host file {path}: {error}") from error
    hosts = []
    for number, raw in enumerate(lines, start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = re.match(r"^([\w.-]+)(?:\s+slots\s*=\s*(\d+))?$", line)
        if match is None:
            raise UsageError(f"{path} line {number}: {raw.strip()!r} is not of the form `name slots=N`")
        hosts.append((match.group(1), int(match.group(2) or 1)))
    return hosts


def is_local(host: str) -> bool:
    """Whether `host` is this machine."""
    own = socket.gethostname()
    if host in {"localhost", own, own.partition(".")[0]}:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == socket.getfqdn()  # asked for last: it may take a name server's time
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET  # noqa: PLR2004
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))  # possible at one's own addresses only
        except OSError:
            return False
    return True


def interface_address(name: str) -> str:
    """The IPv4 address of a network interface of this machine.

    Raises:
        UsageError: there is no such interface, or it has no address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            known = ", ".join(sorted(each for _, each in socket.if_nameindex()))
            raise UsageError(f"--network-interface {name}: {error.strerror}; this machine has {known}") from error
    return socket.inet_ntoa(answer[20:24])
