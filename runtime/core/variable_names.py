"""How frameworks' variables are called where their gradients are reduced."""

from collections.abc import Iterable, Sequence
from typing import Any

from .arguments import distinct


def name_of(variable: Any, place: int) -> str:
    """The path of a variable of Keras, which alone is its own; the name of one of TensorFlow; its place otherwise."""
    try:
        name = getattr(variable, "path", None) or getattr(variable, "name", None)
    except (AttributeError, ValueError):  # eager tensors of TensorFlow have a name only to say that they have none
        name = None
    if not isinstance(name, str) or not name:
        return f"grad_{place}"
    return name.removesuffix(":0")


def names_of(variables: Iterable[Any]) -> list[str]:
    """Names of variables, all different."""
    return distinct([name_of(variable, place) for place, variable in enumerate(variables)])


class VariableSet:
    """Variables by identity, since those of Keras have no hash, and compare by their elements."""

    def __init__(self, variables: Iterable[Any] = ()) -> None:
        """Begin with some."""
        self._held: dict[int, Any] = {}
        for variable in variables:
            self.add(variable)

    def add(self, variable: Any) -> None:
        """Take in a variable; and the framework's own that it stands for, since scripts name either."""
        for each in (variable, getattr(variable, "_value", None)):
            if each is not None:
                self._held[id(each)] = each

    def all(self) -> list[Any]:
        """What is here."""
        return list(self._held.values())

    def __contains__(self, variable: object) -> bool:
        """Whether it is here, or the framework's own that it stands for."""
        inner = getattr(variable, "_value", None)
        return id(variable) in self._held or (inner is not None and id(inner) in self._held)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._held)


def split(variables: Sequence[Any], some: VariableSet) -> tuple[list[int], list[int]]:
    """Places of the variables that are among `some`, and of the others."""
    inside = [place for place, variable in enumerate(variables) if variable in some]
    return inside, [place for place in range(len(variables)) if place not in set(inside)]
