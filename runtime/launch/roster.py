"""Who is in an elastic job: which workers live, which wait, and which rank each of them gets.

A state machine without processes and sockets.  Workers are numbered as they are started; ranks are given anew at every meeting
(`round`): those who were there before keep the lower ranks, in their order.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class ElasticWorker:
    """One worker process."""

    number: int
    host: str
    rank: int = -1
    """At the last meeting; -1 before the first."""
    waits: bool = False
    """Whether it has checked in for the next meeting."""


@dataclass(slots=True)
class Roster:
    """The workers of a job."""

    workers: dict[int, ElasticWorker] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """Slots of each host, as last discovered, in the order in which the hosts came."""
    blocked_until: dict[str, list[float]] = field(default_factory=dict)
    """For each host, when each slot whose worker has died may be used again."""
    left_until: dict[str, float] = field(default_factory=dict)
    """Hosts that are left alone as a whole, and until when."""
    round: int = 0
    most: int | None = None

    def discover(self, found: dict[str, int]) -> bool:
        """Take note of hosts and slots; returns whether they have changed.  Hosts known before keep their place."""
        ordered = {host: found[host] for host in self.slots if host in found}
        ordered |= {host: slots for host, slots in found.items() if host not in ordered}
        changed = ordered != self.slots
        self.slots = ordered
        return changed

    def add(self, number: int, host: str) -> None:
        """A worker was started."""
        self.workers[number] = ElasticWorker(number, host)

    def remove(self, number: int) -> ElasticWorker | None:
        """A worker has ended."""
        return self.workers.pop(number, None)

    def block(self, host: str, until_s: float) -> None:
        """Do not use one slot of a host for a while."""
        self.blocked_until.setdefault(host, []).append(until_s)

    def leave(self, host: str, until_s: float) -> None:
        """Do not use a host for a while; who is there leaves at the next meeting."""
        self.left_until[host] = until_s

    def wait_for_hosts(self, now_s: float) -> None:
        """Take hosts back whose time is over."""
        self.left_until = {host: until for host, until in self.left_until.items() if until > now_s}

    def usable(self, host: str, now_s: float) -> int:
        """Slots of a host that may be used."""
        blocked = [until for until in self.blocked_until.get(host, []) if until > now_s]
        self.blocked_until[host] = blocked
        return max(0, self._slots_of(host) - len(blocked))

    def _slots_of(self, host: str) -> int:
        return 0 if host in self.left_until else self.slots.get(host, 0)

    def unwanted(self) -> list[ElasticWorker]:
        """Workers whose host or slot is gone, the youngest of each host first."""
        found = []
        for host in dict.fromkeys(worker.host for worker in self.workers.values()):
            here = sorted((m for m in self.workers.values() if m.host == host), key=_seniority)
            found += here[self._slots_of(host) :]
        return found

    def workers_elsewhere(self, host: str) -> int:
        """How many workers of the last meeting are on other hosts, and stay."""
        going = self.unwanted()
        return sum(worker.rank >= 0 and worker.host != host for worker in self.workers.values() if worker not in going)

    @property
    def has_state(self) -> bool:
        """Whether a worker of the last meeting is left, who knows how far training has come."""
        return any(worker.rank >= 0 for worker in self.workers.values())

    def vacancies(self, now_s: float) -> list[str]:
        """The host of each worker that could be started now."""
        staying = len(self.workers) - len(self.unwanted())
        room = None if self.most is None else max(0, self.most - staying)
        hosts = []
        for host in self.slots:
            here = sum(worker.host == host for worker in self.workers.values())
            hosts += [host] * max(0, self.usable(host, now_s) - here)
        return hosts if room is None else hosts[:room]

    @property
    def has_changed(self) -> bool:
        """Whether some worker waits to come in, or has to leave, so that the others should meet anew."""
        newcomers = any(worker.waits and worker.rank < 0 for worker in self.workers.values())
        return newcomers or bool(self.unwanted())

    def check_in(self, number: int) -> None:
        """A worker waits for the next meeting."""
        worker = self.workers.get(number)
        if worker is not None:
            worker.waits = True

    def convene(self, least: int) -> list[ElasticWorker] | None:
        """Begin a meeting if all who are wanted have checked in; returns them in rank order, None if some are missing.

        Args:
            least: fewer workers do not make a job.
        """
        unwanted = {worker.number for worker in self.unwanted()}
        wanted = [worker for worker in self.workers.values() if worker.number not in unwanted]
        if not wanted or len(wanted) < least or not all(worker.waits for worker in wanted):
            return None
        if self.round and not any(worker.rank >= 0 for worker in wanted):
            return None  # they would train everything again
        self.round += 1
        # Workers of a host have to follow one another; hosts are ordered by their senior worker.
        ordered: list[ElasticWorker] = []
        for senior in sorted(wanted, key=_seniority):
            if senior not in ordered:
                ordered += sorted((m for m in wanted if m.host == senior.host), key=_seniority)
        for rank, worker in enumerate(ordered):
            worker.rank, worker.waits = rank, False
        return ordered


def _seniority(worker: ElasticWorker) -> tuple[bool, int, int]:
    return worker.rank < 0, worker.rank, worker.number
