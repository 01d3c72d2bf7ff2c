"""Pickles of plain data, read without running anything.

Only opcodes that make numbers, texts, lists, tuples and dictionaries are known.  What would import, call or build something is
refused, and no length that the file claims is believed: so a pickle from anywhere may be read.
"""

import pickletools
from typing import Any, Final

_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES: Final = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK: Final = object()


class NotPlainError(ValueError):
    """The pickle holds something else than plain data, or is damaged."""


def read_plain_pickle(data: bytes) -> Any:
    """The value of a pickle.  Parts of it may be one and the same object, or hold themselves.

    Raises:
        NotPlainError: it is not of plain data, or damaged.
    """
    reader = _Reader()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return reader.stack.pop()
            reader.take(opcode.name, argument)
    except NotPlainError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise NotPlainError(f"the pickle is damaged ({error})") from error
    raise NotPlainError("the pickle has no end")


class _Reader:
    """A stack, and what was noted to be used again."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._noted: dict[int, Any] = {}

    def take(self, name: str, argument: Any) -> None:
        """Follow one opcode."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in {"EMPTY_LIST", "EMPTY_DICT"}:
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            count = _TUPLES[name]
            taken = [stack.pop() for _ in range(count)]
            stack.append(tuple(reversed(taken)))
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}:
            self._noted[len(self._noted) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in {"GET", "BINGET", "LONG_BINGET"}:
            stack.append(self._noted[argument])
        elif name not in {"PROTO", "FRAME"}:
            self._fill(name)

    def _fill(self, name: str) -> None:
        """Put values into the list or dictionary below them."""
        if name == "APPEND":
            values = [self.stack.pop()]
        elif name == "SETITEM":
            values = [self.stack.pop(), self.stack.pop()][::-1]
        elif name in {"APPENDS", "SETITEMS"}:
            values = self._since_mark()
        else:
            raise NotPlainError(
                f"the pickle holds more than plain data ({name}), and such may run any code: it is not read"
            )
        target = self.stack[-1]
        if name.startswith("APPEND") and type(target) is list:
            target += values
        elif name.startswith("SETITEM") and type(target) is dict:
            for key, value in zip(values[::2], values[1::2], strict=True):
                if not isinstance(key, (str, int)):
                    raise NotPlainError("the pickle is damaged: a key is neither text nor number")
                target[key] = value
        else:
            raise NotPlainError("the pickle is damaged: values have no container")

    def _since_mark(self) -> list[Any]:
        taken: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            taken.append(value)
        taken.reverse()
        return taken
