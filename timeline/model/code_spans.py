"""Names of the spans that say where in the code the training thread was (lane `code`).

>>> CodeSpan("train.py", 57, "augment", "torch").name
'train.py:57 augment (in torch)'
>>> parse_code_span("train.py:57 augment")
CodeSpan(file='train.py', line=57, function='augment', library='')
>>> parse_code_span("FORWARD") is None
True
"""

import re
from dataclasses import dataclass
from typing import Final

OWN: Final = ""
"""The library of code that is in none: the user's."""

DIVIDES_MODELS: Final = "torch.distributed"
"""The part of PyTorch that divides models over ranks (FSDP, DTensor): its own Python runs around every module."""

LOOK_NS: Final = 100_000
"""How long a span is: so that it can be seen, though it stands for a moment, its beginning."""

_NAME: Final = re.compile(
    r"(?P<file>[^:]*):(?P<line>\d{1,9}) (?P<function>.*?)(?: \(in (?P<library>[^()]*)\))?", re.DOTALL
)
_NOT_IN_A_LIBRARY: Final = {ord("("): None, ord(")"): None}


@dataclass(frozen=True, slots=True)
class CodeSpan:
    """A line of the user's code."""

    file: str
    """Without its folder."""
    line: int
    function: str
    library: str
    """Which it has called, and was inside of: "torch"; OWN for none, or what is no Python."""

    @property
    def name(self) -> str:
        """Of the span."""
        library = self.library.translate(_NOT_IN_A_LIBRARY)
        return f"{self.file.replace(':', '_')}:{self.line} {self.function}" + (f" (in {library})" if library else "")


def parse_code_span(name: str) -> CodeSpan | None:
    """The place that a span's name tells; None for what is no such name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return CodeSpan(found["file"], int(found["line"]), found["function"], found["library"] or OWN)
