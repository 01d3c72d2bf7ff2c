"""Elastic state of PyTorch objects: models, optimizers, samplers."""

import copy
from typing import Any

import torch

from ...core.elastic import ObjectState
from ..basics import rank
from ..functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .sampler import ElasticSampler


class StateHandler:
    """Saves, restores and synchronises one object."""

    def __init__(self, value: Any) -> None:
        """Handle `value`, and save it."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Keep the present state."""
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to the state that was saved last."""
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        """Take rank 0's state."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handle another object."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """A module."""

    def sync(self) -> None:
        """See `StateHandler`."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """An optimizer."""

    def sync(self) -> None:
        """See `StateHandler`."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    """A sampler: what any rank has processed is processed."""

    def sync(self) -> None:
        """See `StateHandler`."""
        states = allgather_object(self.value.state_dict(), name="elastic.sampler")
        # A rank that has just come has processed nothing.
        self.value.load_state_dict(max(states, key=lambda state: (state["epoch"], state["processed_num"])))
        self.save()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Which class is handled how; the first that fits counts."""
    return list(_registry)


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Change it."""
    _registry[:] = registry


def _handler_of(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """State of modules, optimizers and samplers (by their `state_dict`), and of plain objects beside them."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """Begin with these; each becomes an attribute."""
        kwargs |= {name: value for name, value in (("model", model), ("optimizer", optimizer)) if value is not None}
        handlers = {}
        for name, value in list(kwargs.items()):
            handler = _handler_of(value)
            if handler is not None:
                handlers[name] = handler
                del kwargs[name]
        object.__setattr__(self, "_handlers", handlers)
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Assigning another object to an attribute that is handled saves that one."""
        super().__setattr__(name, value)
        handler = self._handlers.get(name)
        if handler is not None:
            handler.set_value(value)

    def save(self) -> None:
        """See `State`."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """See `State`."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """See `State`."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """See `State`."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    _handlers: dict[str, StateHandler]
