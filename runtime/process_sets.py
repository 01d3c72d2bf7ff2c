"""Process sets: the ranks among which a collective runs."""

from collections.abc import Iterable

from . import engine
from .errors import NOT_INITIALIZED


class ProcessSet:
    """Some ranks of the job.  Compared by identity."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """Name the ranks; the set can be used once it is registered."""
        self.ranks: list[int] | None = sorted(int(rank) for rank in ranks)
        self.process_set_id: int | None = None

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
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


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


def require_id(process_set: ProcessSet, operation: str) -> int:
    """The id under which `operation` may use `process_set`.

    Raises:
        ValueError: the set is not registered.
    """
    if process_set.process_set_id is None:
        raise ValueError(
            f"{operation}: Process set provided does not exist, or has not been registered. "
            "This version has the global process set only."
        )
    return process_set.process_set_id
