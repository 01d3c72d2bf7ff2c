"""What scripts import from `horovod.common.basics`: the functions of `hvd` that move no tensors, as an object."""

from typing import Any

from ..torch import basics


class HorovodBasics:
    """Starting, stopping and asking, as methods.  Horovod loads its extension here; there is none to load."""

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        """Take what Horovod takes, which is where its extension lies."""
        del pkg_path, args

    def __getattr__(self, name: str) -> Any:
        """The function of `hvd` with this name."""
        function = getattr(basics, name, None)
        if name.startswith("_") or getattr(function, "__module__", None) != basics.__name__:
            raise AttributeError(f"tlkit's HorovodBasics has no {name}")
        return function


__all__ = ["HorovodBasics"]
