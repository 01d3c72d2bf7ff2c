"""What is seen of a model that costs time in every step, while its optimizers step."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tlkit.runtime.instrument.costly_settings import SettingsWatch
from tlkit.runtime.instrument.model_habits import ModelHabits
from tlkit.timeline.record import recorder

Made = tuple[nn.Module, list[torch.optim.Optimizer]]


@pytest.fixture(autouse=True)
def without_the_tracer_of_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the tests is one of the aids that are looked for."""
    monkeypatch.setattr(sys, "gettrace", lambda: None)


def two_parts() -> tuple[nn.Linear, nn.Linear, nn.Sequential]:
    body, head = nn.Linear(8, 8), nn.Linear(8, 4)
    return body, head, nn.Sequential(body, head)


def all_trained() -> Made:
    _, _, model = two_parts()
    return model, [torch.optim.SGD(model.parameters())]


def trained_by_two() -> Made:
    body, head, model = two_parts()
    return model, [torch.optim.SGD(body.parameters()), torch.optim.SGD(head.parameters())]


def head_trained() -> Made:
    """The encoder gets gradients for nothing."""
    _, head, model = two_parts()
    return model, [torch.optim.SGD(head.parameters())]


def frozen() -> Made:
    body, head, model = two_parts()
    body.requires_grad_(False)
    return model, [torch.optim.SGD(head.parameters())]


def with_a_stray_bias() -> Made:
    """A few numbers without an optimizer are not worth a word."""
    body, head, model = two_parts()
    return model, [torch.optim.SGD([body.weight, head.weight, head.bias])]


def trained_through_copies() -> Made:
    """As by optimizers with master weights, who write what they have computed into the model's."""
    _, _, model = two_parts()
    return model, [torch.optim.SGD([one.detach().clone().requires_grad_() for one in model.parameters()])]


def double() -> Made:
    model, optimizers = all_trained()
    return model.double(), optimizers


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (all_trained, set()),
        (trained_by_two, set()),
        (head_trained, {"untrained-gradients"}),
        (frozen, set()),
        (with_a_stray_bias, set()),
        (trained_through_copies, set()),
        (double, {"double-precision"}),
    ],
)
def test_what_a_model_is_like(make: Callable[[], Made], expected: set[str]) -> None:
    """After a step, whose gradients are still there."""
    model, optimizers = make()
    habits = ModelHabits()
    habits.called(model)
    model(torch.randn(2, 8, dtype=next(model.parameters()).dtype)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        habits.stepped(optimizer)

    assert set(habits.found()) == expected


class Tagger(nn.Module):
    """A table and what is made of its rows; with tied weights, which every row of the table gets a gradient from."""

    def __init__(self, rows: int, *, sparse: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 32, sparse=sparse)
        self.out = self.table.weight if tied else nn.Parameter(torch.randn(4, 32))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table(words)
        return found @ self.out.T


@pytest.mark.parametrize(
    ("model", "words", "expected"),
    [
        (Tagger(40_000), 500, {"mostly-zero-gradients"}),
        (Tagger(40_000), 200_000, set()),
        (Tagger(1_000), 10, set()),
        (Tagger(40_000, sparse=True), 500, set()),
        (Tagger(40_000, tied=True), 5, set()),
    ],
)
def test_tables_of_which_a_step_reads_a_few_rows(model: Tagger, words: int, expected: set[str]) -> None:
    """Large ones, whose gradient is kept whole."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    habits = ModelHabits()
    habits.called(model)
    model(torch.randint(model.table.num_embeddings, (words,))).square().sum().backward()
    optimizer.step()
    habits.stepped(optimizer)

    assert set(habits.found()) == expected


@pytest.mark.parametrize(("weight", "clears"), [(0.0, False), (1e-6, False), (0.0, True)])
def test_gradients_that_are_all_zero(weight: float, *, clears: bool) -> None:
    """Of a head without weight in the loss; not where gradients were cleared before anybody could look."""
    body, (head, other) = nn.Linear(64, 64), (nn.Linear(64, 64), nn.Linear(64, 64))
    model = nn.ModuleList([body, head, other])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    habits = ModelHabits()
    call = nn.Module.__call__
    x = torch.randn(256, 64)
    for module in (body, head, other):
        habits.called(module)
    known = habits.repeats.call(call, body, (x,), {})
    losses = [habits.repeats.call(call, one, (known,), {}).square().mean() for one in (head, other)]
    habits.repeats.pass_through(torch.autograd.backward, (losses[0] + weight * losses[1],), {}, is_grad=False)
    optimizer.step()
    habits.stepped(optimizer)
    if clears:
        optimizer.zero_grad(set_to_none=False)
    found = habits.found()

    assert set(found) == ({"zero-gradients"} if not weight and not clears else set())
    assert habits.details() == ({"zero-gradients": "Linear"} if found else {})


def test_how_much_of_a_model_is_concerned() -> None:
    """Of its elements: half of the model's parts in double precision, and a quarter in gradients that nobody uses."""
    body, head, model = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
    parts = nn.ModuleList([body, head, model, nn.Linear(16, 16, bias=False)])
    habits = ModelHabits()
    habits.called(parts.double())
    for part in parts:
        part(torch.randn(2, 16, dtype=torch.float64)).sum().backward()
    head.float()
    model.float()
    habits.stepped(torch.optim.SGD([*body.parameters(), *head.parameters(), *model.parameters()]))

    assert habits.found() == {"double-precision": 0.5, "untrained-gradients": 0.25}


def test_a_script_with_very_many_modules_has_no_model() -> None:
    """And what is gone is forgotten."""
    habits = ModelHabits()
    modules = [nn.Linear(1, 1).double() for _ in range(20)]
    for module in modules:
        habits.called(module)
    assert not habits.found()
    del modules[10:], module
    assert habits.found() == {"double-precision": 1.0}


def test_what_cannot_be_looked_at_stops_no_training() -> None:
    """Nor do models that cannot be hashed, or optimizers of another making."""

    class Strange(nn.Linear):
        __hash__ = None  # type: ignore[assignment]

        def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
            raise RuntimeError("not yet")

    habits = ModelHabits()
    model = Strange(1, 1)
    habits.called(model)
    groups: tuple[Any, ...] = (None, [{}], [[1]], [{"params": [1]}])
    for optimizer in (None, object(), *(SimpleNamespace(param_groups=one) for one in groups)):
        habits.stepped(optimizer)

    assert not habits.found()


def test_the_timeline_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that steps later in the step is known from the next look on."""
    told: list[list[str]] = []

    class Writer:
        def settings(self, on: dict[str, float], details: dict[str, str]) -> None:
            told.append(list(on))

    monkeypatch.setattr(recorder, "timeline", Writer)
    model, (first, second) = trained_by_two()
    watch = SettingsWatch(ModelHabits)
    for number in range(1, 6):
        watch.called(model)
        model(torch.randn(2, 8)).sum().backward()
        watch.stepped(first)
        watch.step_ended(number)
        watch.stepped(second)

    assert told == [["untrained-gradients"], []]
