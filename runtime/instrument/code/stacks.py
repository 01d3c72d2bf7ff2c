"""Whose code a frame is of, and what a look at a stack tells: the innermost line of the user's own, and what it has called."""

import inspect
import linecache
import os
import re
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from types import CodeType
from typing import Any, Final, NamedTuple

from ....timeline.model.code_spans import DIVIDES_MODELS, OWN, CodeSpan
from .line_counts import LineCount

#: A stack that is deeper is not looked at to its end.
MAX_DEPTH: Final = 200
#: Files and places that are remembered.
MAX_KNOWN: Final = 4096
_MAX_TEXT: Final = 80

_ROOT: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__)))) + os.sep  # noqa: PTH120  as code objects have it
_TOOLKIT: Final = tuple(f"{_ROOT}{name}{os.sep}" for name in ("collector", "dashboard", "runtime", "timeline"))
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
#: What of PyTorch computes on the host and is no operator: it is told by the module.
_OF_THE_HOST: Final = {f"torch{os.sep}{name}.py": f"torch.{name}" for name in ("_tensor_str", "serialization")}
#: What divides a model over ranks: the hooks of FSDP on every module, DTensor's dispatch.
_DIVIDES_MODELS: Final = f"torch{os.sep}distributed{os.sep}"
#: Functions that are called so make batches, by what people call them.
_MAKES_INPUT: Final = re.compile(
    r"_?_?(getitem|next|iter)__|.*(augment|collate|tokeni[sz]e|preprocess).*|"
    r"_?((get|next|load|fetch|make|read|build|prepare|create|draw|sample|generate|collect)_)"
    r"(\w+_)?(mini)?(batch(es)?|samples?|examples?|inputs?|data|records?|images?|frames|sequences?)(_\w+)?|next_?batch|getbatch"
)
_STANDARD: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


def library_of(path: str) -> str:
    """Whose code a file is: a package that is installed, a module of Python, or "" for the user's own."""
    if path.startswith(_TOOLKIT):
        return "tlkit"
    if _is_written_by_torch(path):
        return "torch"
    inside = next((path.rpartition(folder)[2] for folder in _INSTALLED if folder in path), "")
    inside = inside or next((path.removeprefix(folder) for folder in _STANDARD if path.startswith(folder)), "")
    if inside.startswith(_DIVIDES_MODELS):
        return DIVIDES_MODELS
    if inside:
        return _OF_THE_HOST.get(inside) or inside.split(os.sep, 1)[0].removesuffix(".py")
    # Code without a file: of Python itself, of a dataclass, of a compiler; a notebook's cells have one of their own.
    return "python" if path.startswith("<") and not path.startswith("<ipython") else OWN


def _is_written_by_torch(path: str) -> bool:
    """Whether a compiler of PyTorch's has written the code: Inductor into its cache, torch.fx into memory."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    return (
        f"{os.sep}torchinductor_" in path
        or path.startswith("<eval_with_key>")
        or bool(cache and path.startswith(cache.rstrip(os.sep) + os.sep))
    )


Frame = tuple[CodeType, int, int]
"""Of a stack: the function, the line or -1, and the last instruction."""


class Seen(NamedTuple):
    """Where a thread was."""

    code: CodeType
    line: int
    library: str
    """That the line has called, and was inside of; OWN for none."""
    is_input: bool = False
    """Whether that makes what the training loop goes over, as far as the stack tells."""


class Stacks:
    """Looks at stacks, and remembers whose code is whose."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._libraries: dict[str, str] = {}
        self._names: dict[tuple[str, int, str, str], tuple[str, dict[str, Any] | None]] = {}

    def look(self, frames: Sequence[Frame], within: CodeType | None = None) -> Seen | None:
        """The innermost line of the user's own in a stack; None if there is none.

        Args:
            frames: innermost first.
            within: look at what this function has called, and at nothing if it has not been; where none of that is the user's
                own, the innermost line is told.
        """
        own: Seen | None = None
        innermost = Seen(frames[0][0], _line_of(frames[0]), self._library(frames[0][0])) if frames else None
        for frame in frames:
            code = frame[0]
            if code is within:
                return own or innermost
            if own is None and innermost is not None and self._library(code) == OWN:
                own = Seen(code, _line_of(frame), innermost.library)
                if within is None:
                    break
        return own if within is None else None

    def makes_input(self, frames: Sequence[Frame], callers: Collection[CodeType]) -> bool:
        """Whether the training loop has called code of the user's for its next batch: an iterator, or a function of such a name.

        Args:
            frames: innermost first.
            callers: functions that have called the optimizer; the innermost of them here is the loop.
        """
        loop = next((number for number, frame in enumerate(frames) if frame[0] in callers), 0)
        if not loop:
            return False
        called = [frame[0] for frame in frames[:loop]]
        own = [code for code in called if self._library(code) == OWN]
        # The outermost tells what it is for: evaluation makes batches of its own.
        if not own or (_is_iterator(called[-1]) and _is_iterator(own[-1])):
            return bool(own)
        return _MAKES_INPUT.fullmatch(own[-1].co_name.lower()) is not None

    def _library(self, code: CodeType) -> str:
        path = code.co_filename
        library = self._libraries.get(path)
        if library is None:
            if len(self._libraries) >= MAX_KNOWN:
                self._libraries.clear()
            library = self._libraries[path] = library_of(path)
        return library

    def describe(
        self, seen: Seen, counted: Mapping[tuple[str, int, str], LineCount]
    ) -> tuple[str, dict[str, Any] | None]:
        """The span's name, and of the line its text and what was counted of it in a step, as far as they are known.

        Args:
            seen: where.
            counted: by file, line and function.
        """
        key = (seen.code.co_filename, seen.line, seen.code.co_name, seen.library)
        known = self._names.get(key)
        if known is None:
            if len(self._names) >= MAX_KNOWN:
                self._names.clear()
            text = linecache.getline(seen.code.co_filename, seen.line).strip()[:_MAX_TEXT]
            args: dict[str, Any] = {"text": text} if text else {}
            count = counted.get(key[:3])
            if count is not None:
                args["times"] = count.times
                if count.of_graph_nodes:
                    args |= {"graph_nodes": count.graph_nodes, "of_graph_nodes": count.of_graph_nodes}
            file = os.path.basename(seen.code.co_filename)  # noqa: PTH119  of what may be no path
            self._names[key] = known = CodeSpan(file, seen.line, seen.code.co_name, seen.library).name, args or None
        return known

    def forget_names(self) -> None:
        """More is known of lines than before."""
        self._names.clear()


def _is_iterator(code: CodeType) -> bool:
    """Whether a function gives one value after the other to a loop; an expression, as any(x for …), is no loop's."""
    is_generator = bool(code.co_flags & inspect.CO_GENERATOR) and code.co_name != "<genexpr>"
    return is_generator or code.co_name in {"__next__", "__iter__"}


def _line_of(frame: Frame) -> int:
    """The line that a frame is at; of an instruction without a line, as at the end of a loop, the line before it."""
    code, line, instruction = frame
    if line <= 0:
        before = [one for start, _, one in code.co_lines() if one is not None and start <= instruction]
        line = before[-1] if before else code.co_firstlineno
    return line
