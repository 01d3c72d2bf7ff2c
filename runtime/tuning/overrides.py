"""What the script hands to DataLoader, DistributedDataParallel and its optimizer, changed as TLKIT_SETTINGS asks.

Each change is logged.  The constructors are wrapped for good: a setting holds for the whole run.
"""

import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ...timeline.trials import (
    BINDING,
    BUCKET_CAP,
    BUCKET_VIEW,
    DDP_COMPRESSION,
    FUSED,
    PERSISTENT,
    PIN_MEMORY,
    PREFETCH,
    SETTINGS_VARIABLE,
    THREADS,
    WORKERS,
)
from ..core.topology import read_launched

_log = logging.getLogger("tlkit.runtime")

Arguments = dict[str, Any]
#: Optimizers with a fused form for processors and devices.
FUSABLE: Final = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)

set_num_threads: Final = torch.set_num_threads
"""torch's own, whatever the script finds under that name."""


def install(settings: Mapping[str, str]) -> None:
    """Make `settings` hold from now on."""
    if BINDING in settings:
        _bind()
    if THREADS in settings:
        _fix_threads(int(settings[THREADS]))
    loader = {name: settings[name] for name in (WORKERS, PREFETCH, PERSISTENT, PIN_MEMORY) if name in settings}
    if loader:
        _wrap(DataLoader, lambda given: loader_arguments(given, loader))
    if BUCKET_VIEW in settings or BUCKET_CAP in settings:
        _wrap(DistributedDataParallel, lambda given: _ddp_arguments(given, settings))
    if DDP_COMPRESSION in settings:
        _compress_ddp(settings[DDP_COMPRESSION])
    if FUSED in settings:
        for optimizer in FUSABLE:
            _wrap(optimizer, lambda given: fused_arguments(given, wanted=settings[FUSED] == "1"))


def loader_arguments(given: Arguments, settings: Mapping[str, str]) -> Arguments:
    """What a DataLoader is made with instead of `given`: only what fits together.

    >>> loader_arguments({"num_workers": 0}, {"loader.workers": "2", "loader.prefetch": "4"})
    {'num_workers': 2, 'prefetch_factor': 4}
    """
    wanted = dict(given)
    workers = int(settings.get(WORKERS, given.get("num_workers", 0)))
    wanted["num_workers"] = workers
    if PIN_MEMORY in settings:
        wanted["pin_memory"] = settings[PIN_MEMORY] == "1"
    if workers:
        if PREFETCH in settings:
            wanted["prefetch_factor"] = int(settings[PREFETCH])
        if PERSISTENT in settings:
            wanted["persistent_workers"] = settings[PERSISTENT] == "1"
    else:  # torch refuses these without workers
        for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
            wanted.pop(name, None)
    return wanted


def _ddp_arguments(given: Arguments, settings: Mapping[str, str]) -> Arguments:
    wanted = dict(given)
    if BUCKET_VIEW in settings:
        wanted["gradient_as_bucket_view"] = settings[BUCKET_VIEW] == "1"
    if BUCKET_CAP in settings:
        wanted["bucket_cap_mb"] = int(settings[BUCKET_CAP])
    return wanted


def fused_arguments(given: Arguments, *, wanted: bool) -> Arguments:
    """What an optimizer is made with instead of `given`."""
    if given.get("differentiable") or bool(given.get("fused")) == wanted:
        return given
    # torch takes only one of the two.
    return {**given, "fused": wanted, "foreach": False} if wanted else {**given, "fused": False}


def set_fused(optimizer: torch.optim.Optimizer, before: Sequence[Arguments], *, wanted: bool) -> None:
    """Have an optimizer update in one pass from its next step on, or as it did before.

    For parameters on processors: their state is the same in both forms.

    Args:
        before: of each group of parameters what `update_form` has said of it.
    """
    for group, own in zip(optimizer.param_groups, before, strict=False):
        group.update({"fused": True, "foreach": False} if wanted else own)


def update_form(optimizer: torch.optim.Optimizer) -> list[Arguments]:
    """How each group of parameters is updated."""
    return [{name: group.get(name) for name in ("fused", "foreach")} for group in optimizer.param_groups]


def _wrap(made: type, change: Callable[[Arguments], Arguments]) -> None:
    owner: Any = made
    owner.__init__ = wrapped_init(made, change)


def wrapped_init(made: type, change: Callable[[Arguments], Arguments]) -> Callable[..., None]:
    """The constructor of a class, given other arguments than the script gives."""
    owner: Any = made
    original = owner.__init__
    signature = inspect.signature(original)
    own_name, *names = signature.parameters
    rest = next((name for name in names if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD), "")

    @functools.wraps(original)
    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = dict(signature.bind(self, *args, **kwargs).arguments)
        except TypeError:  # the script's mistake, which torch reports better
            original(self, *args, **kwargs)
            return
        del given[own_name]
        extra = given.pop(rest, {})
        wanted = change(given)
        for name in sorted(wanted.keys() | given.keys()):
            if wanted.get(name) is not given.get(name) and wanted.get(name) != given.get(name):
                _log.info("%s of %s is %r (%s)", name, made.__name__, wanted.get(name), SETTINGS_VARIABLE)
        original(self, **wanted, **extra)

    return changed


def _fix_threads(count: int) -> None:
    """Use so many threads for operators, whatever the script says afterwards."""
    set_num_threads(count)

    @functools.wraps(set_num_threads)
    def ignored(number: int) -> None:
        if number != count:
            _log.info("torch.set_num_threads(%s) has no effect: %s sets %d", number, SETTINGS_VARIABLE, count)

    torch_module: Any = torch
    torch_module.set_num_threads = ignored


def own_cores(cores: list[int], local_rank: int, local_size: int) -> list[int]:
    """The cores of one rank, where the ranks of a host divide them; all of them where there are too few.

    >>> own_cores([0, 1, 2, 3, 4], 1, 2)
    [2, 3, 4]
    """
    if local_size < 2 or len(cores) < local_size:  # noqa: PLR2004  nothing to divide
        return cores
    return cores[local_rank * len(cores) // local_size : (local_rank + 1) * len(cores) // local_size]


def _bind() -> None:
    """Keep this process, and what it starts, on its share of the host's cores."""
    launched = read_launched()
    mine = own_cores(sorted(os.sched_getaffinity(0)), launched.local_rank or 0, launched.local_size or 1)
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), mine)
    _log.info("bound to the cores %s (%s)", ", ".join(map(str, mine)), SETTINGS_VARIABLE)


def _compress_ddp(dtype: str) -> None:
    """Have DDP send gradients in half precision."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415  seldom wanted

    hook = default_hooks.bf16_compress_hook if dtype == "bf16" else default_hooks.fp16_compress_hook
    owner: Any = DistributedDataParallel
    original = owner.__init__

    @functools.wraps(original)
    def compressing(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, hook)
        _log.info("gradients are sent as %s (%s)", dtype, SETTINGS_VARIABLE)

    owner.__init__ = compressing
