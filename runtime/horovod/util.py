"""What scripts import from `horovod.common.util`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..torch.data_plane import transports


def gloo_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002  Horovod's signature
    """Whether Gloo can move the bytes."""
    del verbose
    return True


def mpi_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether MPI can move the bytes."""
    del verbose
    return transports.mpi.is_built()


def nccl_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether NCCL can move the bytes."""
    del verbose
    return transports.nccl.is_built()


def gpu_available(ext_base_name: str = "torch", verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether there is a GPU."""
    del ext_base_name, verbose
    return torch.cuda.is_available()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether a framework is supported: PyTorch is."""
    del verbose
    return ext_base_name == "torch"


def check_extension(*_: object, **__: object) -> None:
    """Horovod checks here that it was compiled; there is nothing to compile."""


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two, as Adasum needs."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], num_parts: int) -> list[list[Any]]:
    """Cut a list into parts of equal length, the first ones longer by one where it does not come out even."""
    share, rest = divmod(len(items), num_parts)
    parts, first = [], 0
    for number in range(num_parts):
        last = first + share + (number < rest)
        parts.append(list(items[first:last]))
        first = last
    return parts


@contextmanager
def env(**variables: Any) -> Iterator[None]:
    """Have environment variables set, or unset where None, inside the block."""
    before: Mapping[str, str | None] = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, Any]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)
