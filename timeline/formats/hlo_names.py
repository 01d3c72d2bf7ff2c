"""The scopes that XLA's compiler remembers of operators: `jit(step)/transpose(jvp(loss))/dot_general`, say.

They are in the programs that a profile carries beside its events; numbers of fields are those of hlo.proto.
"""
# ruff: noqa: PLR2004  numbers of fields

from ..read.protobuf import BYTES, WireError, places
from .xplane_space import Space

METADATA_PLANE = "/host:metadata"
#: Programs are as long as a model has operators; what is beyond is damage.
_MAX_SCOPE = 1024


class Phases:
    """Scopes of the operators of all programs in a file."""

    def __init__(self, space: Space) -> None:
        """Read the programs; those that are damaged tell nothing."""
        self._space = space
        self._scopes: dict[tuple[str, str], str] = {}
        for plane in space.planes:
            if plane.name == METADATA_PLANE:
                for at, end in plane.described.values():
                    try:
                        self._read_described(at, end)
                    except WireError:
                        continue

    def scope_of(self, module: str, operator: str) -> str:
        """Where an operator was made; "" if that is not known."""
        return self._scopes.get((module, operator), "")

    def _read_described(self, at: int, end: int) -> None:
        data = self._space.data
        for number, kind, value, over in places(data, at, end):
            if number != 5 or kind != BYTES:
                continue
            for key, of_stat, content, finish in places(data, value, over):
                if key == 6 and of_stat == BYTES:
                    for field, of_program, begin, last in places(data, content, finish):
                        if field == 1 and of_program == BYTES:
                            self._read_module(begin, last)

    def _read_module(self, at: int, end: int) -> None:
        data, name = self._space.data, ""
        for number, kind, value, over in places(data, at, end):
            if kind == BYTES and number == 1:
                name = self._space.text(value, over)
            elif kind == BYTES and number == 3:
                for key, of_part, begin, finish in places(data, value, over):
                    if key == 2 and of_part == BYTES:
                        self._read_operator(name, begin, finish)

    def _read_operator(self, module: str, at: int, end: int) -> None:
        data, name, scope = self._space.data, "", ""
        for number, kind, value, over in places(data, at, end):
            if kind == BYTES and number == 1:
                name = self._space.text(value, over)
            elif kind == BYTES and number == 7:
                for key, of_metadata, begin, finish in places(data, value, over):
                    if key == 2 and of_metadata == BYTES:
                        scope = self._space.text(begin, finish)[:_MAX_SCOPE]
        if name and scope:
            self._scopes[module, name] = scope
