"""The hosts of an elastic job, as a script of the user prints them."""

import os
import subprocess
from typing import Final

from ...timeline.errors import UsageError
from .hosts import parse_hosts

_DISCOVERY_TIMEOUT_S: Final = 30.0


def run_discovery(script: str, slots_per_host: int | None) -> dict[str, int]:
    """Hosts and slots that a script prints, one `host:slots` or `host` a line.

    Args:
        slots_per_host: for lines without slots.

    Raises:
        UsageError: the script fails, or prints something else.
    """
    try:
        ended = subprocess.run(  # noqa: S603  the user's script
            [os.path.abspath(script) if os.path.exists(script) else script],  # noqa: PTH100, PTH110
            capture_output=True,
            text=True,
            timeout=_DISCOVERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--host-discovery-script {script} cannot be run: {error}") from error
    if ended.returncode:
        raise UsageError(
            f"--host-discovery-script {script} ended with {ended.returncode}: {ended.stderr.strip()[-200:]}"
        )
    found: dict[str, int] = {}
    for line in filter(None, map(str.strip, ended.stdout.splitlines())):
        ((host, slots),) = parse_hosts(line)
        found[host] = slots if ":" in line or slots_per_host is None else slots_per_host
    return found
