"""State of an optimizer made before its first step: there, and without any effect on the training."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tlkit.runtime.torch import priming

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
}


class Counted(torch.optim.SGD):
    """An optimizer that needs a closure."""

    def step(self, closure: Any = None) -> Any:
        """Refuse to do without."""
        if closure is None:
            raise RuntimeError("a closure is needed")
        return super().step(closure)


def parameters() -> list[torch.nn.Parameter]:
    """Two that are trained, and one that is not."""
    torch.manual_seed(3)
    trained = [torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(2))]
    return [*trained, torch.nn.Parameter(torch.ones(2), requires_grad=False)]


def train(optimizer: torch.optim.Optimizer, values: list[torch.nn.Parameter]) -> list[list[float]]:
    """Three steps; returns where they lead."""
    for step in range(3):
        optimizer.zero_grad()
        (values[0].square().sum() + (step + values[1]).sin().sum()).backward()
        optimizer.step()
    return [value.flatten().tolist() for value in values]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_goes_on_as_if_nothing_had_been_done(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Bit for bit, though the state is there from the start; weights have not decayed."""
    plain, primed = parameters(), parameters()
    before = [value.tolist() for value in primed]
    usual, early = make(plain), make(primed)
    steps: list[object] = []
    early.register_step_post_hook(lambda *_: steps.append(None))

    priming.make_gradients(early)
    priming.make_state(early)

    assert [value.tolist() for value in primed] == before
    assert [None if value.grad is None else value.grad.abs().sum().item() for value in primed] == [0.0, 0.0, None]
    assert list(early.state) == primed[:2]
    assert all(early.state[value] for value in primed[:2])
    assert not steps
    assert train(early, primed) == train(usual, plain)


def test_gradients_that_are_there_stay() -> None:
    """A backward before the broadcast is not lost."""
    values = parameters()
    optimizer = OPTIMIZERS["adam"](values)
    values[0].sum().backward()

    priming.make_gradients(optimizer)
    priming.make_state(optimizer)

    assert values[0].grad is not None
    assert values[0].grad.tolist() == [[1.0, 1.0]] * 3


def test_optimizer_that_cannot_step_on_zeros_is_left_alone() -> None:
    """It makes its state in its own time."""
    values = parameters()
    optimizer = Counted(values, lr=0.1, weight_decay=0.2)

    priming.make_state(optimizer)

    assert not optimizer.state
    assert optimizer.param_groups[0]["weight_decay"] == 0.2
    assert [value.grad for value in values] == [None] * 3
