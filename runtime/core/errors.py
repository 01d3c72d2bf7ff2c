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
    """Something is of another version than what is installed.  Only raised by what scripts import from `horovod.common.util`."""

    def __init__(self, name: str, version: str, installed_version: str | None) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str | None) -> str:
    """The sentence for a framework that is of another version than the one installed."""
    return (
        f"{name} {version} runs, and {installed_version or 'another version'} is installed: install one of them again"
    )


NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution."
)
