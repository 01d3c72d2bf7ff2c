"""Analyses that are kept beside their traces (timeline/read/cache.py): a large run is diagnosed once, and then opened at once.

An analysis is kept without its trace, under a digest of all that it depends on: the trace, what the user has selected, and the
code that analyses.  It is a pickle in a folder that only this user can write to; of what is read back, nothing but the records of
this package and the tables and arrays in them is ever made.  Whatever is wrong with it, the trace is analysed anew.
"""

import enum
import hashlib
import io
import logging
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from ..timeline import __name__ as _timeline
from ..timeline.formats import Progress
from ..timeline.model.trace import Trace
from ..timeline.read import cache_entries
from ..timeline.read.cache import folder_of
from ..timeline.read.open import Elsewhere, open_trace
from .analysis import Analysis, analyze, of_ranks
from .findings import RULES, all_rules
from .predict.replay import Replay

#: Stands for the trace in what is kept.
_TRACE: Final = "trace"
_PACKAGE: Final = _timeline.rpartition(".")[0]
#: What tables, arrays and plain values are made of when they are read back, by module.
_PLAIN: Final = {
    "builtins": {"slice", "set", "frozenset", "complex", "bytearray", "range"},
    "collections": {"OrderedDict", "Counter"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.numeric": {"_frombuffer"},
    "pandas": {
        *(
            "Categorical",
            "CategoricalDtype",
            "CategoricalIndex",
            "DataFrame",
            "Index",
            "MultiIndex",
            "RangeIndex",
            "Series",
        ),
        "StringDtype",
    },
    "pandas._libs.arrays": {"__pyx_unpickle_NDArrayBacked"},
    "pandas._libs.internals": {"_unpickle_block"},
    "pandas.arrays": {"ArrowStringArray", "StringArray"},
    "pandas.core.arrays.categorical": {"Categorical"},
    "pandas.core.arrays.string_arrow": {"ArrowStringArray"},
    "pandas.core.arrays.string_": {"StringArray", "StringDtype"},
    "pandas.core.dtypes.dtypes": {"CategoricalDtype"},
    "pandas.core.frame": {"DataFrame"},
    "pandas.core.indexes.base": {"Index", "_new_Index"},
    "pandas.core.indexes.category": {"CategoricalIndex"},
    "pandas.core.indexes.multi": {"MultiIndex"},
    "pandas.core.indexes.range": {"RangeIndex"},
    "pandas.core.internals.managers": {"BlockManager", "SingleBlockManager"},
    "pandas.core.series": {"Series"},
    "pyarrow.lib": {"_restore_array", "chunked_array", "py_buffer", "type_for_alias"},
}

_log = logging.getLogger("tlkit.collector")


def analyze_kept(
    source: Trace | str | Path | Sequence[str | Path],
    *,
    warm_up: int | None = None,
    steps: tuple[int, int] | None = None,
    ranks: Sequence[int] | None = None,
    progress: Progress = lambda _done, _total: None,
    on_trace: Callable[[Trace], None] = lambda _trace: None,
    elsewhere: Elsewhere = lambda _nbytes: False,
    analyze_elsewhere: Callable[[Trace], bool] = lambda _trace: False,
) -> Analysis:
    """`analyze`, or the same analysis from the last time.

    Args:
        source: a trace, or what `open_trace` takes.
        warm_up: leading steps to leave out; None to find out.
        steps: first step and the one after the last; None for all.
        ranks: look at these ranks only.
        progress: see `open_trace`.
        on_trace: called with the trace when it has been read and is yet to be analysed.
        elsewhere: see `open_trace`.
        analyze_elsewhere: called with the trace if no analysis of it is kept; it may have another process make and keep one, and
            returns whether that has happened.

    Raises:
        TraceError: the trace cannot be read.
        UsageError: `ranks` or `steps` select nothing.
    """
    trace = source if isinstance(source, Trace) else open_trace(source, progress=progress, elsewhere=elsewhere)
    folder, name = _folder_of(trace), _name_of(trace, warm_up, steps, ranks)
    if ranks is not None:
        trace = of_ranks(trace, ranks)
    if folder is not None and (kept := load(folder, name, trace)) is not None:
        return kept
    on_trace(trace)
    if folder is not None and analyze_elsewhere(trace) and (kept := load(folder, name, trace)) is not None:
        return kept
    found = analyze(trace, warm_up=warm_up, steps=steps)
    if folder is not None and found.condition.ending != "running":  # which depends on when somebody looks
        store(folder, name, found)
    return found


def can_be_kept(trace: Trace) -> bool:
    """Whether an analysis of a trace would be kept, unless the run still goes on."""
    return _folder_of(trace) is not None


def load(folder: Path, name: str, trace: Trace) -> Analysis | None:
    """The analysis of a trace that was kept under a name; None if there is none."""
    try:
        found = _Unpickler(io.BytesIO(cache_entries.read_analysis(folder, name)), trace).load()
        if not isinstance(found, Analysis):
            raise TypeError("no analysis")
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever is in the file, the trace can be analysed anew
        _log.debug("the kept analysis %s cannot be read: %r", name, error)
        return None
    return found


def store(folder: Path, name: str, analysis: Analysis) -> None:
    """Keep an analysis.  Failures are logged and have no other effect."""
    _ = analysis.facts.device  # which is made when it is asked for, and every page asks for it
    content = io.BytesIO()
    try:
        _Pickler(content, analysis.trace).dump(analysis)
        cache_entries.add_analysis(folder, name, content.getvalue())
    except (OSError, pickle.PickleError) as error:
        _log.warning("the analysis is not kept in %s: %s", folder, error)


class _Pickler(pickle.Pickler):
    """Leaves the trace out."""

    def __init__(self, file: io.BytesIO, trace: Trace) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._trace = trace

    def persistent_id(self, obj: Any) -> str | None:
        return _TRACE if obj is self._trace else None


class _Unpickler(pickle.Unpickler):
    """Puts the trace back, and makes nothing but records, tables and arrays."""

    def __init__(self, file: io.BytesIO, trace: Trace) -> None:
        super().__init__(file)
        self._trace = trace

    def persistent_load(self, pid: Any) -> Trace:
        if pid != _TRACE:
            raise pickle.UnpicklingError(f"{pid!r} is not the trace")
        return self._trace

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if global_name in _PLAIN.get(module_name, ()):
            return super().find_class(module_name, global_name)
        if module_name.startswith(f"{_PACKAGE}.") and module_name in sys.modules:
            found = super().find_class(module_name, global_name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, (enum.Enum, Replay))):
                return found
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no part of an analysis")


def _folder_of(trace: Trace) -> Path | None:
    """Where the analysis of a trace is kept; None if it is not.

    Rules of other packages may say something else whenever somebody edits them, and nothing here would notice.
    """
    return folder_of(trace) if len(all_rules()) == len(RULES) else None


def _name_of(trace: Trace, warm_up: int | None, steps: tuple[int, int] | None, ranks: Sequence[int] | None) -> str:
    """Of all that an analysis depends on; that of the trace's tables is the folder's."""
    # The same files are the same trace, from whatever folder they were named.
    names = tuple(Path(name).name for name in trace.meta.files)
    meta = replace(trace.meta, files=names, known_categories=frozenset())
    depends_on = (
        _code(),
        meta,
        sorted(trace.meta.known_categories),  # a set's order is another one in each process
        warm_up,
        steps,
        None if ranks is None else sorted(set(ranks)),
    )
    return hashlib.blake2b(repr(depends_on).encode(), digest_size=20).hexdigest()


@cache
def _code() -> str:
    """Of the code that analyses, and of what it is made of."""
    folders = [Path(__file__).parent, Path(open_trace.__code__.co_filename).parents[1]]
    files = [(path.name, path.stat()) for folder in folders for path in sorted(folder.rglob("*.py"))]
    versions = (sys.version, np.__version__, pd.__version__, pa.__version__)
    described = [versions, *((name, found.st_size, found.st_mtime_ns) for name, found in files)]
    return hashlib.blake2b(repr(described).encode(), digest_size=20).hexdigest()
