"""Ranks and sizes as operations: computed when the graph runs, not when it is traced."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import torch

from ..core import engine
from ..core.errors import NOT_INITIALIZED, HorovodInternalError
from ..core.process_sets import get_process_set_ids_and_ranks
from ..torch import basics
from .running import public, run


def _number(ask: Callable[[], int]) -> Any:
    def body(_: list[Any]) -> list[torch.Tensor]:
        if engine.current() is None:
            raise HorovodInternalError(NOT_INITIALIZED)
        return [torch.tensor(ask(), dtype=torch.int32, device="cpu")]

    return run(body, [], [(tf.int32, tf.TensorShape([]))])[0]


@public  # type: ignore[untyped-decorator]
def rank_op(name: str | None = None) -> Any:
    """Number of this process among all, as a scalar."""
    del name
    return _number(basics.rank)


@public  # type: ignore[untyped-decorator]
def local_rank_op(name: str | None = None) -> Any:
    """Number of this process on its host, as a scalar."""
    del name
    return _number(basics.local_rank)


@public  # type: ignore[untyped-decorator]
def cross_rank_op(name: str | None = None) -> Any:
    """Number of this host, as a scalar."""
    del name
    return _number(basics.cross_rank)


@public  # type: ignore[untyped-decorator]
def local_size_op(name: str | None = None) -> Any:
    """How many processes this host has, as a scalar."""
    del name
    return _number(basics.local_size)


@public  # type: ignore[untyped-decorator]
def cross_size_op(name: str | None = None) -> Any:
    """How many hosts there are, as a scalar."""
    del name
    return _number(basics.cross_size)


@public  # type: ignore[untyped-decorator]
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """How many processes a process set has, as a scalar.

    Raises:
        InvalidArgumentError: there is no such set, when it runs.
    """
    del name

    def ask() -> int:
        ranks = get_process_set_ids_and_ranks().get(process_set_id)
        if ranks is None:
            raise ValueError(f"there is no process set with the id {process_set_id}")
        return len(ranks)

    return _number(ask)


@public  # type: ignore[untyped-decorator]
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in a process set, 0 if not, -1 before `init`, -2 for a set that is not there; as a scalar."""
    del name

    def body(_: list[Any]) -> list[torch.Tensor]:
        answer = -1
        if engine.current() is not None:
            ranks = get_process_set_ids_and_ranks().get(process_set_id)
            answer = -2 if ranks is None else int(basics.rank() in ranks)
        return [torch.tensor(answer, dtype=torch.int32, device="cpu")]

    return run(body, [], [(tf.int32, tf.TensorShape([]))])[0]
