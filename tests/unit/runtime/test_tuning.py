"""What TLKIT_SETTINGS makes of the arguments of loaders, optimizers and DDP, and where the blocks of a trial begin."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tlkit.collector.tuning.settings import SETTINGS as NAMES
from tlkit.runtime.tuning.overrides import (
    fused_arguments,
    loader_arguments,
    own_cores,
    set_fused,
    update_form,
    wrapped_init,
)
from tlkit.runtime.tuning.trial import block_starts
from tlkit.timeline.trials import SETTINGS, Block, TrialPlan

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("given", "settings", "wanted"),
    [
        ({}, {"loader.workers": "2"}, {"num_workers": 2}),
        (
            {"num_workers": 4, "prefetch_factor": 8, "persistent_workers": True, "timeout": 5},
            {"loader.workers": "0"},
            {"num_workers": 0},
        ),
        (
            {"num_workers": 1},
            {"loader.prefetch": "4", "loader.persistent": "1", "loader.pin_memory": "1"},
            {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": True, "pin_memory": True},
        ),
        ({"num_workers": 0}, {"loader.prefetch": "4", "loader.persistent": "1"}, {"num_workers": 0}),
    ],
)
def test_a_loader_gets_only_what_fits_together(
    given: dict[str, Any], settings: dict[str, str], wanted: dict[str, Any]
) -> None:
    """torch refuses to prefetch, or to keep workers, where there are none."""
    made = loader_arguments({"dataset": [1, 2, 3], "batch_size": 2, **given}, settings)

    assert made == {"dataset": [1, 2, 3], "batch_size": 2, **wanted}
    loader: Any = torch.utils.data.DataLoader(**made)
    assert loader.num_workers == wanted["num_workers"]


def test_an_optimizer_is_fused_unless_it_is_or_cannot_be() -> None:
    """foreach excludes it."""
    assert fused_arguments({"lr": 0.1, "foreach": True}, wanted=True) == {"lr": 0.1, "foreach": False, "fused": True}
    assert fused_arguments({"differentiable": True}, wanted=True) == {"differentiable": True}
    assert fused_arguments({"fused": True, "lr": 1}, wanted=True) == {"fused": True, "lr": 1}
    assert fused_arguments({"fused": True}, wanted=False) == {"fused": False}


def test_arguments_are_changed_however_they_are_given() -> None:
    """By position, by name, by a derived class; and a wrong call raises what it would raise without us."""

    class Made:
        def __init__(self, data: list[int], size: int = 1, **rest: int) -> None:
            self.got = (data, size, rest)

    class Derived(Made):
        def __init__(self) -> None:
            super().__init__([3], other=4)

    owner: Any = Made
    owner.__init__ = wrapped_init(Made, lambda given: {**given, "size": 7})

    assert Made([1], 2).got == ([1], 7, {})
    assert Made(data=[1]).got == ([1], 7, {})
    assert Derived().got == ([3], 7, {"other": 4})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'data'"):
        owner()


@pytest.mark.parametrize(
    ("cores", "local_size", "shares"),
    [
        ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
        ([0, 1, 2, 3, 4], 2, [[0, 1], [2, 3, 4]]),
        ([4, 6, 9], 3, [[4], [6], [9]]),
        ([0, 1], 4, [[0, 1]] * 4),
        ([0, 1], 1, [[0, 1]]),
    ],
)
def test_ranks_divide_the_cores(cores: list[int], local_size: int, shares: list[list[int]]) -> None:
    """All of them, each to one rank; where there are fewer cores than ranks, nobody is bound."""
    assert [own_cores(cores, rank, local_size) for rank in range(local_size)] == shares


def test_blocks_begin_where_those_before_them_end() -> None:
    """The first step of a script has to be over before anything is known of it."""
    plan = TrialPlan(folder="", steps=30, blocks=[Block(5), Block(8, {"a": "1"}), Block(8)])

    assert block_starts(plan) == {1: {}, 5: {"a": "1"}, 13: {}}


def test_every_setting_is_documented() -> None:
    """The names of --only, and those of TLKIT_SETTINGS."""
    page = (REPOSITORY / "docs" / "tuning.md").read_text(encoding="utf-8")

    assert [name for name in NAMES if f"| `{name}` |" not in page] == []
    assert [name for name in SETTINGS if f"| `{name}=" not in page] == []


class _Operators(TorchDispatchMode):
    """Names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_an_optimizer_is_fused_for_some_steps_and_goes_on_as_before(kind: Any, given: dict[str, Any]) -> None:
    """From its own state, with the same results, as if nothing had happened."""
    ways = {}
    for way in ("plain", "in turn"):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        optimizer = kind(model.parameters(), lr=0.1, **given)
        before = update_form(optimizer)
        fused: list[bool] = []
        for step in range(9):
            if way == "in turn":
                set_fused(optimizer, before, wanted=3 <= step < 6)
            optimizer.zero_grad()
            model(torch.ones(2, 5)).square().sum().backward()
            with _Operators() as operators:
                optimizer.step()
            fused.append(any("_fused_" in name for name in operators.names))
        assert fused == [way == "in turn" and 3 <= step < 6 for step in range(9)]
        assert update_form(optimizer) == before
        ways[way] = model.weight.detach().clone()

    torch.testing.assert_close(ways["in turn"], ways["plain"], rtol=1e-5, atol=1e-6)
