"""Process sets: the ranks among which a collective runs."""

from collections.abc import Iterable, Mapping
from typing import Any

from . import engine
from .errors import NOT_INITIALIZED


class ProcessSet:
    """Some ranks of the job.  Compared by identity."""

    def __init__(self, ranks_or_comm: Any) -> None:
        """Name the ranks; the set can be used once it is registered.

        Args:
            ranks_or_comm: global ranks, or an mpi4py communicator of those processes.

        Raises:
            ValueError: it is neither.
        """
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            self.ranks = sorted(int(rank) for rank in ranks_or_comm)
        except (TypeError, ValueError):
            raise ValueError(
                "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"
            ) from None

    def size(self) -> int | None:
        """How many ranks it has; None while it is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return len(self.ranks)

    def rank(self) -> int | None:
        """This process's place in it; None while it is not registered.

        Raises:
            ValueError: this process is not part of it.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        mine = _require_engine().topology.rank
        if mine not in self.ranks:
            raise ValueError("Process is not part of provided process set.")
        return self.ranks.index(mine)

    def included(self) -> bool | None:
        """Whether this process is part of it; None while its ranks are unknown."""
        return None if self.ranks is None else _require_engine().topology.rank in self.ranks

    def __str__(self) -> str:
        """Show the set."""
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _GlobalProcessSet(ProcessSet):
    """All ranks."""

    def __init__(self) -> None:
        super().__init__([])
        self.process_set_id = 0
        self.ranks = None

    def size(self) -> int:
        return _require_engine().topology.size

    def rank(self) -> int:
        return _require_engine().topology.rank

    def included(self) -> bool:
        _require_engine()
        return True

    def set_ranks(self, size: int) -> None:
        """Fill in the ranks, once they are known."""
        self.ranks = list(range(size))


def _require_engine() -> engine.Engine:
    running = engine.current()
    if running is None:
        raise ValueError(NOT_INITIALIZED)
    return running


global_process_set = _GlobalProcessSet()

#: Sets that have an id, to take it from them when the runtime shuts down.
_registered: list[ProcessSet] = []


def register(process_set: ProcessSet, number: int, ranks: Iterable[int]) -> None:
    """Give a set its id and ranks."""
    process_set.process_set_id = number
    process_set.ranks = sorted(ranks)
    if process_set not in _registered:
        _registered.append(process_set)


def unregister(process_set: ProcessSet) -> None:
    """Take a set's id from it, and from all that stand for the same: it cannot be used any more."""
    number, process_set.process_set_id = process_set.process_set_id, None
    for each in tuple(_registered):
        if each is process_set or each.process_set_id == number:
            each.process_set_id = None
            _registered.remove(each)


def unregister_all() -> None:
    """The runtime has shut down, and with it all sets."""
    for process_set in _registered:
        process_set.process_set_id = None
    _registered.clear()


def get_process_set_ids_and_ranks() -> Mapping[int, list[int]]:
    """Global ranks of every process set of the job, by id."""
    return {number: list(ranks) for number, ranks in sorted(_require_engine().process_sets.items())}


def require_id(process_set: ProcessSet, operation: str) -> int:
    """The id under which `operation` may use `process_set`.

    Raises:
        ValueError: the set is not registered, or this rank is not in it.
    """
    number = process_set.process_set_id
    if number == 0:
        return 0
    if number is None:
        raise ValueError(
            f"{operation.capitalize()}: Process set provided does not exist, or has not been registered. Give it to "
            "hvd.init(process_sets=[...]), or add it with hvd.add_process_set()."
        )
    if not process_set.included():
        rank = _require_engine().topology.rank
        raise ValueError(
            f"{operation.capitalize()}: Rank {rank} is not a member of the provided process set. {process_set}"
        )
    return number
