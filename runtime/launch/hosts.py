"""Host lists: `-H a:2,b:2` and host files."""

import ipaddress
import re
import socket
from pathlib import Path

from ...timeline.errors import UsageError

_ENTRY = re.compile(r"^([\w.-]+)(?::(\d+))?$")


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
        hosts.append((match.group(1), int(match.group(2) or 1)))
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
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = socket.gethostname()
        # The full name is asked for last: it may take a name server's time.
        return host in {"localhost", own, own.partition(".")[0]} or host == socket.getfqdn()


def check_slots(hosts: list[tuple[str, int]], ranks: int) -> None:
    """Make sure that `ranks` ranks can be started on `hosts`.

    Raises:
        UsageError: too few slots, or a host that is not this machine.
    """
    remote = [host for host, _ in hosts if not is_local(host)]
    if remote:
        raise UsageError(
            f"this version starts ranks on this machine only, not on {', '.join(remote)}: start the script with "
            f"`mpirun -np {ranks} -H …` or torchrun, which the runtime recognises"
        )
    slots = sum(count for _, count in hosts)
    if ranks > slots:
        raise UsageError(f"Requested more processes ({ranks}) than there are available slots ({slots})")
