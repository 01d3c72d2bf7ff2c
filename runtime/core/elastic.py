"""Elastic training: state that survives when ranks come and go.

A training function is run again and again by `run_fn`: when a rank is lost, the others go back to the last commit, meet anew
and continue; when hosts were added or removed they meet anew at the next commit and lose nothing.
"""

import copy
import functools
import logging
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from . import elastic_client, engine
from .errors import HorovodInternalError, HostsUpdatedInterrupt

_log = logging.getLogger("tlkit.runtime")


class HostUpdateResult(IntEnum):
    """What has happened to the hosts, as listeners hear it."""

    NO_UPDATE = 0
    REMOVED = 1
    ADDED = 2
    MIXED = 3


class WorkerNotificationManager:
    """Tells who wants to know that hosts were added or removed: on every rank, just before training is interrupted for it."""

    def __init__(self) -> None:
        """Begin without listeners."""
        self._listeners: list[Any] = []

    def init(self, *_: object, **__: object) -> None:
        """Horovod opens a connection here; ours is asked at each commit (elastic_client.py)."""

    def register_listener(self, listener: Any) -> None:
        """Call `listener.on_hosts_updated(timestamp, result)` from now on."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        """Do not call it any more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell all."""
        for listener in tuple(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)


notification_manager: Final = WorkerNotificationManager()


class State:
    """What has to be the same on all ranks, and to be saved now and then.  Derive from it, or use `ObjectState`."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        """Begin without callbacks.

        Args:
            bcast_object: sends rank 0's object to all ranks.
            get_rank: this process's rank.
        """
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._was_notified = False

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Somebody else than `tl-run` knows that hosts were added or removed: the next `check_host_updates` says so.

        On rank 0 of an elastic job, whose word counts for all; elsewhere for this process alone.
        """
        del timestamp, update_res
        self._was_notified = True

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Call these after the ranks have met anew, to adapt what depends on their number."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have met anew."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save, and see whether hosts were added or removed.

        Raises:
            HostsUpdatedInterrupt: they were; on all ranks at the same commit.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """See whether hosts were added or removed.

        Raises:
            HostsUpdatedInterrupt: they were; on all ranks together, since rank 0 decides for all.
        """
        pending, self._was_notified = self._was_notified, False
        if elastic_client.is_elastic():
            if self._rank() == 0 and not pending:
                pending = elastic_client.hosts_have_changed()
            pending = self._bcast_object(pending, name="elastic.hosts_have_changed")
        if pending:
            notification_manager.handle_hosts_updated(time.time(), HostUpdateResult.MIXED)
            self._was_notified = False
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Keep the present values, to go back to them."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the values that were saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take rank 0's values."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to another number of ranks."""


class ObjectState(State):
    """State of plain objects, which are its attributes."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        """Begin with `kwargs`, which become attributes and are saved at once."""
        super().__init__(bcast_object, get_rank)
        self._saved_state: dict[str, Any] = kwargs
        self._set_attributes()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Any of those given."""

        def __setattr__(self, name: str, value: Any) -> None:
            """Set any attribute; those given are saved with the next commit."""

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def save(self) -> None:
        """See `State`."""
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        """See `State`."""
        self._set_attributes()

    def sync(self) -> None:
        """See `State`."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state, name="elastic.state")
            self._set_attributes()


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """`func`, run until it returns, whatever ranks come and go meanwhile.

    Args:
        func: called with a `State` and whatever the caller gives.
        reset: ends the runtime and starts it again.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                # Always: ranks that have just come have nothing, and who may skip it is not everybody's view.
                state.sync()
                result = func(state, *args, **kwargs)
                _end_together(state)
            except HorovodInternalError as error:
                _log.warning("a rank was lost, returning to the last commit: %s", error)
                state.restore()
            except HostsUpdatedInterrupt:
                _log.info("hosts were added or removed, the ranks connect again")
            else:
                return result
            _meet_again(reset)
            state.on_reset()

    return wrapper


def _end_together(state: State) -> None:
    """Wait until all ranks have trained to the end.

    A rank that is lost in the last step leaves some with that step done and others without.  Those who are done would save
    and leave, and the rest could not go on; so all go back to the last commit, unless all are done.

    Raises:
        HorovodInternalError: a rank was lost.
    """
    if elastic_client.is_elastic() and engine.current() is not None:
        state._bcast_object(None, name="elastic.end")  # noqa: SLF001  the same module


def _meet_again(reset: Callable[[], None]) -> None:
    """Start the runtime again; a rank may be lost while the others meet."""
    tries = 5
    for attempt in range(1, tries + 1):
        try:
            reset()
        except (HorovodInternalError, ValueError) as error:
            if attempt == tries or not elastic_client.is_elastic():
                raise
            _log.warning("the ranks could not connect, trying again: %s", error)
        else:
            return
