"""A script that records before its ranks have met, as under frameworks that start the other processes later.

Nothing says then which rank it is; `torch.distributed.init_process_group` does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any, Final

import torch.distributed as dist

from .patching import Patches

#: How long a rank waits for the others to record with it.
_PATIENCE: Final = timedelta(seconds=30)

_patches = Patches()


def when_met(callback: Callable[[], None]) -> None:
    """Have `callback` called once, when the ranks have met."""
    if not dist.is_available():
        return
    _patches.restore()
    original = dist.init_process_group

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _patches.restore()
        callback()
        return result

    for module in (dist, dist.distributed_c10d, dist.device_mesh):
        if getattr(module, "init_process_group", None) is original:
            _patches.replace(module, "init_process_group", init_process_group)


def forget() -> None:
    """Do not wait any more."""
    _patches.restore()


@contextmanager
def patience() -> Iterator[None]:
    """Wait for other ranks no longer than half a minute: they may not record at all, and training has to go on."""
    store: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001  the one place where all ranks have met
    before = store.timeout
    store.set_timeout(min(before, _PATIENCE))
    try:
        yield
    finally:
        store.set_timeout(before)
