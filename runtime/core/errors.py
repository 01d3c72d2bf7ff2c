"""Errors that user scripts catch, under the names and base classes that Horovod gives them.

They stand beside `TlkitError` rather than below it where a script relies on another base class.
"""


class HorovodInternalError(RuntimeError):
    """A collective failed: the ranks disagree about it, a rank is gone, or the runtime was shut down."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed; training should re-initialise.

    `skip_sync`: whether state need not be synchronised afterwards.
    """

    def __init__(self, skip_sync: bool = False) -> None:  # noqa: FBT001, FBT002  Horovod's signature
        super().__init__("the set of hosts changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """The extension was built for another version of the framework.  Never raised here; scripts import the name."""


NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution."
)
