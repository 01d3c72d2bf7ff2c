"""What the runtime makes of its own does not follow the mode that a program is in."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._device import _device_constructors

RUNTIME = Path(__file__).resolve().parents[3] / "runtime"

#: Functions that make a tensor on the default device unless they are told where.
MAKERS = {function.__name__ for function in _device_constructors() if hasattr(torch, function.__name__)}


def unplaced(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each call of torch that leaves the device to the program's default."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=name), keywords=keywords) if name in MAKERS:
                if all(keyword.arg not in {"device", None} for keyword in keywords):
                    yield node.lineno, name


@pytest.mark.parametrize("path", sorted(RUNTIME.rglob("*.py")), ids=lambda path: str(path.relative_to(RUNTIME)))
def test_every_tensor_of_the_runtime_names_its_device(path: Path) -> None:
    """With `torch.set_default_device` a tensor without one would be made where nothing can send it."""
    assert list(unplaced(path.read_text())) == []


def test_unplaced_tensors_are_found() -> None:
    """The test above is worth something."""
    source = "torch.zeros(3)\ntorch.empty(2, device='cpu')\ntorch.tensor([1])\nx.new_empty(3)\n"

    assert list(unplaced(source)) == [(1, "zeros"), (3, "tensor")]
