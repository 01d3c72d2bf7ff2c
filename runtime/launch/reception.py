"""Where the workers of an elastic job ask `tl-run` who they are: on this host through a Unix socket, from others by TCP."""

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from ..core.connections import listen, listen_within_host, socket_path
from ..core.door import Door, Guest
from ..core.elastic_client import REALM, WITHIN_HOST
from ..core.handshake import Proof, Purpose
from .hosts import is_local
from .placement import address_towards

_LISTEN_TIMEOUT_S: Final = 10.0
_QUESTION_TIMEOUT_S: Final = 10.0
_MAX_QUESTION_NBYTES: Final = 4096
#: The threads at the doors are daemons; they look so often whether there is anything to do.
_WAIT_S: Final = 3600.0

Answer = Callable[[dict[str, Any]], None]
"""Answers a question, now or later."""


class Reception:
    """Lets workers in, and hands on what they ask."""

    def __init__(self, secret: str, run_id: str, hear: Callable[[int, dict[str, Any], Guest], None]) -> None:
        """Begin to listen on this host.

        Args:
            hear: called with a worker's number, its question and its connection, which is the callee's from then on; by
                several threads.

        Raises:
            RuntimeFailure: nothing can listen here.
        """
        self._secret, self._hear = secret, hear
        self._listeners = ExitStack()
        self._addresses: dict[str, str] = {}
        self._local = f"{WITHIN_HOST}{run_id}"
        within_host = listen_within_host(socket_path(self._local), _LISTEN_TIMEOUT_S)
        self._open(self._local, self._listeners.enter_context(within_host))

    def address_for(self, host: str) -> str:
        """Where workers on `host` ask.

        Raises:
            UsageError: the host is not known.
            RuntimeFailure: nothing can listen at the address of this machine that the host reaches.
        """
        if is_local(host):
            return self._local
        own = address_towards(host)
        if own not in self._addresses:
            listener = listen(own)
            self._addresses[own] = f"{own}:{listener.getsockname()[1]}"
            self._open(self._addresses[own], listener)
        return self._addresses[own]

    def close(self) -> None:
        """Stop to listen within this host.  What listens to others goes with the process."""
        self._listeners.close()

    def _open(self, address: str, listener: Any) -> None:
        door = Door([(listener, Proof.of(self._secret, address, REALM))])
        threading.Thread(target=self._serve, args=(door,), daemon=True).start()

    def _serve(self, door: Door) -> None:
        while True:
            for guest in door.wait(_WAIT_S):
                threading.Thread(target=self._read, args=(guest,), daemon=True).start()

    def _read(self, guest: Guest) -> None:
        connection = guest.connection
        try:
            connection.settimeout(_QUESTION_TIMEOUT_S)
            with connection.makefile("rb") as file:
                question: dict[str, Any] = json.loads(file.readline(_MAX_QUESTION_NBYTES))
            if not guest.claim.fits or guest.claim.purpose is not Purpose.LAUNCHER:
                raise ValueError("this door is for workers")
            connection.settimeout(None)
        except (OSError, ValueError):
            connection.close()
            return
        self._hear(guest.claim.rank, question, guest)
