"""`tl-run --min-np`: a job whose ranks come and go.

Workers ask this process who they are (runtime/core/elastic_client.py), over a connection that has proved itself
(reception.py).  When one is lost or hosts change, all that are left check in again and get new ranks.
"""

import argparse
import json
import os
import random
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ...timeline.errors import TlkitError, UsageError
from ..core import elastic_client
from ..core.door import Guest
from ..core.handshake import SECRET_VARIABLE
from .discovery import run_discovery
from .hosts import is_local
from .placement import environments, free_ports, master_address, place, remote_shell, remote_starter
from .reception import Reception
from .remote import describe_rank
from .roster import ElasticWorker, Roster
from .workers import Rank, Workers

_DISCOVERY_INTERVAL_S: Final = 1.0
_ELASTIC_TIMEOUT_S: Final = 600.0

#: How long the slot of a worker that has died is not used, unless the user says otherwise; doubles with every death.
_COOLDOWN_S: Final = (10.0, 120.0)


class ElasticJob:
    """Starts workers where there are slots, and lets them meet."""

    def __init__(
        self,
        command: Sequence[str],
        inherited: Mapping[str, str],
        settings: Mapping[str, str],
        arguments: argparse.Namespace,
        hosts: Sequence[tuple[str, int]],
    ) -> None:
        """Prepare.

        Args:
            hosts: name and slots, where no script discovers them.
        """
        self._command = list(command)
        self._inherited, self._settings = inherited, settings
        self._least = arguments.min_np or arguments.np
        self._roster = Roster(most=arguments.max_np)
        self._script = arguments.host_discovery_script
        self._slots_per_host = arguments.slots_per_host
        self._timeout_s = float(arguments.elastic_timeout or _ELASTIC_TIMEOUT_S)
        self._reset_limit = arguments.reset_limit
        self._cooldown_s = tuple(map(float, arguments.blacklist_cooldown_range or _COOLDOWN_S))
        self._deaths: dict[str, int] = {}
        self._workers = Workers(output_folder=arguments.output_filename, prefix_timestamp=arguments.prefix_timestamp)
        self._secret = secrets.token_hex(32)
        self._ssh = arguments.ssh_port, arguments.ssh_identity_file
        self._run_id = secrets.token_hex(8)
        self._lock = threading.RLock()
        self._waiting: dict[int, socket.socket] = {}
        self._started = 0
        self._next_discovery_s = 0.0
        self._short_since_s = time.monotonic()
        self._is_over = False
        """Whether a rank has trained to the end."""
        self._last_failure: int | None = None
        self._late_failure = 0
        """Exit status of a rank that failed after another had trained to the end."""
        self._leaves_hosts = bool(arguments.blacklist_cooldown_range)
        self._static_hosts = dict(hosts)
        self._leaving: set[int] = set()
        self._sent_home: set[int] = set()

    # Running.

    def run(self) -> int:
        """Run the job to its end; returns its exit status."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: self._workers.stop(received))
        signal.signal(signal.SIGUSR2, lambda *_: self._workers.ask_recorder())
        self._reception = Reception(self._secret, self._run_id, self._hear)
        try:
            return self._loop()
        finally:
            self._workers.end_all()
            self._reception.close()

    def _loop(self) -> int:
        self._discover(first=True)
        while True:
            for number, code in self._workers.collect():
                self._ended(number, code)
            if self._workers.stop_signal:
                return 128 + self._workers.stop_signal
            with self._lock:
                if not self._is_over:
                    self._discover()
                    self._start_workers()
                    self._end_unwanted()
                    self._convene()
                else:
                    self._send_home()
                status = self._status()
            if status is not None:
                return status

    def _status(self) -> int | None:
        """The job's exit status, None while it goes on.

        Raises:
            UsageError: there are not enough workers for too long.
        """
        roster = self._roster
        if self._is_over:
            # Who has not met the others has nothing to finish.
            return None if roster.has_state or (roster.workers and not roster.round) else self._late_failure
        if self._reset_limit is not None and roster.round - 1 > self._reset_limit:
            print(
                f"Horovod was shutdown because number of resets during elastic job exceeded limit: {self._reset_limit}",
                file=sys.stderr,
            )
            return 1
        if not roster.has_state and (roster.round or (self._last_failure is not None and not roster.workers)):
            print("No hosts from previous set remaining, unable to broadcast state.", file=sys.stderr)
            return self._last_failure or 1
        if len(roster.workers) >= self._least:
            self._short_since_s = time.monotonic()
        if time.monotonic() - self._short_since_s > self._timeout_s:
            raise UsageError(
                f"there were not {self._least} workers within {self._timeout_s:g} s ({sum(roster.slots.values())} slots "
                "found): check the output of the discovery script, or lower --min-np"
            )
        return None

    def _ended(self, number: int, code: int) -> None:
        with self._lock:
            worker = self._roster.remove(number)
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                waiting.close()
            if worker is None or number in self._leaving:
                return
            has_met = worker.rank >= 0 or not self._roster.round
            if code == 0 and has_met:
                self._is_over = True
                return
            if code:
                print(f"Process {number} on {worker.host} exit with status code {code}.", file=sys.stderr)
                if self._is_over:
                    self._late_failure = self._late_failure or (code if has_met else 0)
                else:
                    self._last_failure = code
            self._let_rest(worker.host)

    def _let_rest(self, host: str) -> None:
        """Start nothing for a while where a worker has ended: in its slot, or on its host if the user has asked for that."""
        times = self._deaths[host] = self._deaths.get(host, 0) + 1
        least_s, most_s = self._cooldown_s
        pause_s = min(most_s, least_s * 2 ** (times - 1)) * random.uniform(1.0, 1.1)  # noqa: S311
        until_s = time.monotonic() + pause_s
        if self._leaves_hosts and self._roster.workers_elsewhere(host) >= self._least:
            self._roster.leave(host, until_s)
        else:
            self._roster.block(host, until_s)

    def _send_home(self) -> None:
        """Training has ended: who comes now would train everything again, alone."""
        for worker in self._roster.workers.values():
            if worker.waits and worker.number not in self._sent_home:
                self._sent_home.add(worker.number)
                self._answer(worker.number, {"over": True})
                if worker.rank < 0:
                    print(
                        f"tl-run: training ended before worker {worker.number} came: it is not needed", file=sys.stderr
                    )

    def _discover(self, *, first: bool = False) -> None:
        now_s = time.monotonic()
        if now_s < self._next_discovery_s:
            return
        self._next_discovery_s = now_s + _DISCOVERY_INTERVAL_S
        if self._script is None:
            self._roster.discover(self._static_hosts)
            return
        try:
            found = run_discovery(self._script, self._slots_per_host)
        except UsageError as error:
            if first:
                raise
            print(f"tl-run: {error}", file=sys.stderr)
            return
        self._roster.discover(found)

    def _start_workers(self) -> None:
        self._roster.wait_for_hosts(time.monotonic())
        for host in self._roster.vacancies(time.monotonic()):
            number = self._started
            self._started += 1
            try:
                self._workers.add(number, self._worker(number, host))
            except (TlkitError, OSError) as error:
                if is_local(host):
                    raise UsageError(f"cannot start {self._command[0]}: {error}") from error
                print(f"tl-run: {host} is left out for a while: {error}", file=sys.stderr)
                self._let_rest(host)
            else:
                self._roster.add(number, host)

    def _worker(self, number: int, host: str) -> Rank:
        environment = {
            **self._inherited,
            **self._settings,
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_HOSTNAME": host,
            "TLKIT_RUN_ID": self._run_id,
            "PYTHONUNBUFFERED": "1",
            elastic_client.ADDRESS: self._reception.address_for(host),
            elastic_client.WORKER: str(number),
            SECRET_VARIABLE: self._secret,
        }
        if is_local(host):
            return Rank(self._command, environment, label=number)
        shell = remote_shell(host, *self._ssh)
        line = [*shell, *map(shlex.quote, remote_starter())]
        return Rank(line, os.environ, label=number, said=describe_rank(self._command, environment))

    def _end_unwanted(self) -> None:
        """Workers whose host is gone end when they check in; one that never does is ended after a while by its loss of peers."""
        for worker in self._roster.unwanted():
            if worker.waits:
                self._answer(worker.number, {"removed": True})
                self._leaving.add(worker.number)
                worker.waits = False

    # Meeting.

    def _convene(self) -> None:
        ordered = self._roster.convene(self._least)
        if ordered is None:
            return
        for worker, environment in zip(ordered, self._environments(ordered), strict=True):
            self._answer(worker.number, {"environment": environment})

    def _environments(self, ordered: Sequence[ElasticWorker]) -> list[dict[str, str]]:
        counts: dict[str, int] = {}
        for worker in ordered:
            counts[worker.host] = counts.get(worker.host, 0) + 1
        slots = place(list(counts.items()), len(ordered))
        port, meeting_port = free_ports(here=slots[0].is_local)
        address = master_address(slots)
        made = environments(slots, {}, {}, address, port, meeting_port=meeting_port, secret=self._secret)
        for worker, environment in zip(ordered, made, strict=True):
            environment[elastic_client.ROUND] = str(self._roster.round)
            environment["HOROVOD_HOSTNAME"] = worker.host
            environment["TLKIT_RUN_ID"] = self._run_id
            if "OMP_NUM_THREADS" in self._inherited:
                del environment["OMP_NUM_THREADS"]
        return made

    def _answer(self, number: int, answer: Mapping[str, Any]) -> None:
        connection = self._waiting.pop(number, None)
        if connection is not None:
            with connection, suppress(OSError):
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _hear(self, number: int, question: Mapping[str, Any], guest: Guest) -> None:
        with self._lock:
            if question.get("ask") == "assignment":
                self._waiting[number] = guest.connection
                self._roster.check_in(number)
                return
            changed = self._roster.has_changed
        with guest.connection as connection, suppress(OSError):
            connection.sendall(json.dumps({"changed": changed}).encode() + b"\n")


def run_elastic(
    arguments: argparse.Namespace,
    command: Sequence[str],
    hosts: Sequence[tuple[str, int]],
    inherited: Mapping[str, str],
    settings: Mapping[str, str],
) -> int:
    """Run an elastic job; returns its exit status."""
    if arguments.mpi:
        raise UsageError("elastic training works with Gloo: omit --mpi")
    static = hosts or [("localhost", arguments.max_np or arguments.np)]
    return ElasticJob(command, inherited, settings, arguments, static).run()
