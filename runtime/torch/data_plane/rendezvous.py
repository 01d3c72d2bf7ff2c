"""torch's stores: the one at MASTER_ADDR, which is open to strangers, and the job's own as torch's transports use it."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import Final, TypeVar

# torch.distributed hands these on without exporting them, which type checkers refuse.
from torch._C._distributed_c10d import Store, TCPStore

from ....timeline.errors import RuntimeFailure
from ...core.addresses import is_loopback
from ...core.job_store import JobStore
from ...core.topology import Launched
from .connections import Connections

_Made = TypeVar("_Made")

#: How long it takes to notice that the job has ended while a transport connects itself.
_LOOK_S: Final = 0.05

#: Servers of this process by address and port.  They outlive the engine: the others read the address of the next meeting there.
_servers: Final[dict[tuple[str, int], TCPStore]] = {}


class OpenBoard:
    """The store at MASTER_ADDR and MASTER_PORT: torchrun's, or one that rank 0 serves.

    Whoever reaches it reads and writes it, so nothing but rank 0's address is in it (core/meeting_places.py).
    """

    def __init__(self, launched: Launched, timeout_s: float) -> None:
        """Connect to it, or serve it.

        Raises:
            RuntimeFailure: it cannot be reached.
        """
        self._address, self._port = launched.master_address or "", launched.master_port or 0
        self._timeout_s = timeout_s
        try:
            self._store = self._open(launched)
        except (RuntimeError, OSError) as error:  # DistStoreError and DistNetworkError are RuntimeErrors
            raise self._failure(error) from error

    def _open(self, launched: Launched) -> TCPStore:
        address, port = self._address, self._port
        if launched.rank == 0 and (address, port) in _servers:
            return _servers[address, port]
        agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
        serve = launched.rank == 0 and not agent_serves
        # A script may initialise torch.distributed as well, at the same address: multi_tenant shares the server.
        store = TCPStore(
            address,
            port,
            launched.size,
            is_master=serve,
            timeout=timedelta(seconds=self._timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=_listen_if_own(address, port) if serve else None,
        )
        if serve:
            _servers[address, port] = store
        return store

    def set(self, key: str, value: str, /) -> None:
        """See `Board`."""
        try:
            self._store.set(key, value)
        except RuntimeError as error:
            raise self._failure(error) from error

    def get(self, key: str, /) -> bytes:
        """See `Board`."""
        try:
            return self._store.get(key)
        except RuntimeError as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> RuntimeFailure:
        return RuntimeFailure(
            f"the store at {self._address}:{self._port} did not answer within {self._timeout_s:g} s: "
            f"{str(error).splitlines()[0]}; check that all ranks were started and can reach that address, "
            "or raise HOROVOD_START_TIMEOUT"
        )


def _listen_if_own(address: str, port: int) -> int | None:
    """A socket that listens at `address` alone; None to listen at all addresses, where this one is not the host's own.

    TCPStore by itself listens on all of them.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as error:
            if is_loopback(address) or error.errno == errno.EADDRINUSE:
                raise
            return None
        listener.listen(1024)
        return listener.detach()


class RankStore(Store):
    """A part of the job's store, as torch's transports ask it."""

    def __init__(self, store: JobStore, prefix: str, timeout_s: float) -> None:
        """Ask `store`, and wait for a key as long as this.

        Args:
            prefix: of all keys.
        """
        super().__init__()
        self._store = store
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._parts: list[RankStore] = []
        self.connections = Connections()
        """What the transport that asks has connected, as far as it has gone by what is kept here."""

    def part(self, prefix: str) -> "RankStore":
        """A part of this part, for another transport."""
        part = RankStore(self._store, f"{self._prefix}/{prefix}", self._timeout_s)
        # torch holds it from C++, where nothing keeps the Python half alive.
        self._parts.append(part)
        return part

    def connect(self, make: Callable[[], _Made]) -> _Made:
        """Have a transport connect itself through this store, unless the job ends meanwhile.

        What waits in C++ for ranks that are gone cannot be told so; it is left to itself.

        Raises:
            RuntimeError: it cannot connect, or the job has ended.
        """
        made: Future[_Made] = Future()

        def run() -> None:
            try:
                result = make()
            except BaseException as error:
                made.set_exception(error)
            else:
                made.set_result(result)

        threading.Thread(target=run, name="tlkit-connect", daemon=True).start()
        give_up_s = time.monotonic() + 2 * self._timeout_s
        while True:
            try:
                return made.result(_LOOK_S)
            except FutureTimeoutError:
                if made.done():
                    continue
            if self._store.given_up:
                raise RuntimeError(self._store.given_up)
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"another rank has not answered for {2 * self._timeout_s:g} s")

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def set(self, key: str, value: bytes | str) -> None:
        """See torch's."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.connections.note_own(data)
        self._store.set(self._key(key), data)

    def get(self, key: str) -> bytes:
        """See torch's."""
        value = self._store.get(self._key(key), self._timeout_s)
        self.connections.note_others(value)
        return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """See torch's."""
        timeout_s = self._timeout_s if timeout is None else timeout.total_seconds()
        for key in keys:
            self._store.get(self._key(key), timeout_s)

    def add(self, key: str, amount: int) -> int:
        """See torch's."""
        return self._store.add(self._key(key), amount)

    def check(self, keys: Sequence[str]) -> bool:
        """See torch's."""
        return self._store.check([self._key(key) for key in keys])

    def delete_key(self, key: str) -> bool:
        """See torch's."""
        return self._store.delete(self._key(key))

    def clone(self) -> "RankStore":
        """See torch's."""
        return self
