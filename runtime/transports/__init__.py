"""Transports, one module each, and the choice among them."""

from ...timeline.errors import UsageError
from .base import Transport
from .gloo import GlooTransport

#: Transports that this version has, by the name that HOROVOD_CPU_OPERATIONS takes.
TRANSPORTS = {"gloo": GlooTransport}


def choose_transport(asked: str) -> type[GlooTransport]:
    """The transport class for `asked`, a value of HOROVOD_CPU_OPERATIONS; "" leaves the choice to us.

    Raises:
        UsageError: there is no such transport.
    """
    if not asked:
        return GlooTransport
    try:
        return TRANSPORTS[asked]
    except KeyError:
        raise UsageError(f"HOROVOD_CPU_OPERATIONS={asked}: this version has {', '.join(sorted(TRANSPORTS))}") from None


__all__ = ["TRANSPORTS", "GlooTransport", "Transport", "choose_transport"]
