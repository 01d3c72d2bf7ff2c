"""`hvd.elastic`: training that goes on when ranks come and go."""

from collections.abc import Callable
from typing import Any

from ...core.elastic import ObjectState, State, run_fn
from ..basics import init, shutdown
from .sampler import ElasticSampler
from .state import TorchState


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function that takes a `State` first: it is run until it returns, whatever ranks come and go."""
    return run_fn(func, reset)


def reset() -> None:
    """Let the ranks meet anew."""
    shutdown()
    init()


__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "reset", "run", "run_fn"]
