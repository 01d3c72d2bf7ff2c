"""What the texts of a Kineto trace tell: each name and each category is looked at once, and so is each event, for all questions.

A mark is a bit.  The marks of a text are found with patterns, those of a million events by the numbers of their texts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ..scanning import Events, gather, halves, together

#: Marks of categories.
DEVICE: Final = 1
MEMORY: Final = 2
RUNTIME: Final = 4
LEFT_OUT: Final = 8
PYTHON: Final = 16
ANY_OPERATOR: Final = 32
NUMBERED: Final = 64
REPEATED: Final = 128

_MEMORY_NAMES: Final = {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_CATEGORIES: Final[Mapping[int, set[str]]] = {
    DEVICE: {"kernel", "mtia_ccp_events", "hpu_op", "privateuse1_kernel", *_MEMORY_NAMES},
    MEMORY: _MEMORY_NAMES,
    RUNTIME: {"cuda_runtime", "cuda_driver", "runtime", "mtia_runtime", "hip_runtime", "privateuse1_runtime"},
    LEFT_OUT: {"trace"},
    PYTHON: {"python_function"},
    ANY_OPERATOR: {"cpu_op", "operator"},
    # The operators that the profiler numbers one by one.
    NUMBERED: {"cpu_op"},
    # The host's annotations, on the device once more.
    REPEATED: {"gpu_user_annotation"},
}

#: Marks of names.
BACKWARD: Final = 1
OPTIMIZER: Final = 2
DATA: Final = 4
LOOP: Final = 8
OF_NCCL: Final = 16
HOST_COLLECTIVE: Final = 32
TO_DEVICE: Final = 64
REDUCER: Final = 128
STEP: Final = 256

_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(\d+)")
#: More digits do not fit into 64 bits.
_MAX_STEP_DIGITS: Final = 17
_NAMES: Final[Mapping[int, re.Pattern[str]]] = {
    # Nodes of autograd: newer profilers wrap each in a function of the engine, those before 2022 show the node alone.
    BACKWARD: re.compile(r"^autograd::engine::evaluate_function|^## backward ##$|^\w+Backward\d*$"),
    OPTIMIZER: re.compile(r"^Optimizer\.step#|^## optimizer ##$|^Optimizer\.zero_grad#"),
    DATA: re.compile(r"^enumerate\(DataLoader\)|^DataLoader|dataloader.*__next__", re.IGNORECASE),
    # What only the training loop calls its spans.
    LOOP: re.compile(r"^ProfilerStep|^Optimizer\.|^enumerate\(DataLoader|^## (?:forward|optimizer) ##$"),
    OF_NCCL: re.compile(r"nccl|rccl|oneccl|mscclpp", re.IGNORECASE),
    HOST_COLLECTIVE: re.compile(r"^(gloo|nccl|mpi|ucc|xccl|hccl):(.*)"),
    TO_DEVICE: re.compile(r"HtoD|Host -> Device", re.IGNORECASE),
    REDUCER: re.compile(r"distributed\.ddp\.reducer::|distributed::reducer::"),
}


def step_number(name: str) -> int | None:
    """The number of the profiler's step that a span of this name is; None for any other name."""
    match = _STEP.search(name)
    return int(match[1]) if match and len(match[1]) <= _MAX_STEP_DIGITS else None


def marks_of_categories(categories: Sequence[str]) -> np.ndarray:
    """The marks of each category, whatever its case: uint8, and one of none behind them if there are no categories."""
    lowered = [text.lower() for text in categories]
    marks = [sum(mark for mark, texts in _CATEGORIES.items() if text in texts) for text in lowered]
    return np.array(marks or [0], np.uint8)


def marks_of_names(names: Sequence[str]) -> np.ndarray:
    """The marks of each name: uint16, and one of none behind them if there are no names."""
    marks = [
        sum(mark for mark, pattern in _NAMES.items() if pattern.search(name))
        + (STEP if step_number(name) is not None else 0)
        for name in names
    ]
    return np.array(marks or [0], np.uint16)


@dataclass(frozen=True, slots=True)
class Kinds:
    """Events of one kind are those whose categories and names tell the same: what is asked of a million is answered for ten."""

    of_event: np.ndarray
    """The number of each event's kind, in as few bytes as hold it."""
    categories: np.ndarray
    """The marks of the category, by kind."""
    names: np.ndarray
    """The marks of the name, by kind."""

    def of_category(self, marks: int) -> np.ndarray:
        """Which kinds have one of these marks of categories: bool."""
        of_kinds: np.ndarray = (self.categories & marks) != 0
        return of_kinds

    def of_name(self, marks: int) -> np.ndarray:
        """Which kinds have one of these marks of names: bool."""
        of_kinds: np.ndarray = (self.names & marks) != 0
        return of_kinds

    def are(self, of_kind: np.ndarray) -> np.ndarray:
        """What is so of kinds, of every event."""
        of_events: np.ndarray = gather(of_kind, self.of_event)
        return of_events

    def rows(self, of_kind: np.ndarray) -> np.ndarray:
        """The events of some kinds, ascending.

        Args:
            of_kind: bool, which kinds.
        """
        rows: np.ndarray = np.flatnonzero(self.are(of_kind)) if of_kind.any() else np.empty(0, np.int64)
        return rows


def find_kinds(events: Events, of_names: np.ndarray) -> tuple[Kinds, np.ndarray]:
    """The kind of each event, and whether it is one of a device: bool.

    Args:
        of_names: the marks of the names.
    """
    categories, of_category = np.unique(marks_of_categories(events.texts["category"]), return_inverse=True)
    names, of_name = np.unique(of_names, return_inverse=True)
    count = len(categories) * len(names)
    dtype = np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32
    of_category, of_name = (of_category * len(names)).astype(dtype), of_name.astype(dtype)
    of_event, is_device = np.empty(len(events), dtype), np.empty(len(events), bool)
    kinds = Kinds(of_event, np.repeat(categories, len(names)), np.tile(names, len(categories)))

    def find(part: slice) -> None:
        gather(of_category, events.category[part], of_event[part])
        np.add(of_event[part], gather(of_name, events.name[part]), out=of_event[part])
        gather(kinds.of_category(DEVICE), of_event[part], is_device[part])

    together(len(events), *(partial(find, part) for part in halves(len(events))))
    return kinds, is_device


def matching(texts: Sequence[str], pattern: re.Pattern[str]) -> np.ndarray:
    """Which texts the pattern is found in."""
    return np.array([pattern.search(text) is not None for text in texts] or [False], bool)
