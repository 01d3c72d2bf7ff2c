"""Libraries that compute on the host, not PyTorch's operators, called inside of the model: texts, JSON, NumPy, pictures."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.code import CodeLooks, Place
from ..model.words import milliseconds
from .base import WORTH_RATIO, Finding, promise
from .places import ON_ALL, described

_PARTS: Final = (str(Category.FORWARD), str(Category.BACKWARD), str(Category.OPTIMIZER))

_NAMES: Final = (
    "base64 bz2 csv datetime difflib encodings gzip hashlib heapq html json logging lzma pickle pprint random "
    "re statistics string struct textwrap traceback warnings xml zipfile zlib PIL cv2 h5py matplotlib mlflow "
    "nltk numpy orjson pandas psutil pyarrow rich scipy skimage sklearn soundfile tensorboard tqdm wandb yaml "
    "torch._tensor_str torch.serialization"
)
#: What these do is no operator of a model's; other packages hand work to PyTorch, whose operators are their innermost code, too.
HOST_LIBRARIES: Final = frozenset(_NAMES.split())
#: A line with more of its looks in them has the rest for their sake: it makes what they are handed.
_MOST_OF_A_LINE: Final = 0.5
#: Names of libraries in a sentence.
_MAX_NAMED: Final = 3


class HostCodeInModel:
    """Such code in forward, backward or the optimizer's step of all ranks."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding (one rank alone is a straggler)."""
        code = facts.code
        if code is None or facts.replay is None or facts.breakdown.on_device:
            return []
        numbers = _of_host(code)
        change, total_ns = None, {}
        for part in _PARTS:
            spent = code.spent_by_rank(part, numbers)
            if not spent.any() or spent.min() < ON_ALL * spent.mean():
                continue
            took = facts.part(part).astype(float)
            share = np.minimum(spent / np.maximum(took.mean(axis=1), 1.0), 1.0)
            without = facts.without(part, took * share[:, None])
            change = without if change is None else change & without
            total_ns[part] = float(spent.mean())
        if change is None:
            return []
        outcome = facts.outcome(change)
        if outcome.gain < WORTH_RATIO / 2:
            return []
        part = max(total_ns, key=total_ns.__getitem__)
        place = _line(facts, part)
        if place is None:
            return []
        by_library = _by_library(facts, tuple(total_ns))
        named = ", ".join(sorted(by_library, key=lambda name: -by_library[name])[:_MAX_NAMED])
        return [
            promise(
                outcome,
                class_="compute",
                cause="host-code-in-model",
                ranks=facts.ranks,
                confidence=0.7,
                evidence={
                    "part": part,
                    "by_library_ns": {name: round(ns) for name, ns in by_library.items()},
                    "code": described(place),
                    "pattern": "always",
                },
                remedy=(
                    "Do it outside of the model, less often, or with operators of PyTorch for the whole batch; texts for a log "
                    "are made even where its level is off, unless they are arguments of the call (log.debug('%s', x))."
                ),
                sentence=(
                    f"In {part}, {milliseconds(sum(total_ns.values()))} of each {milliseconds(facts.mean_step_ns)} step go to "
                    f"code that is no operator of PyTorch's ({named}), most of it called at {place.where}."
                ),
            )
        ]


def _of_host(code: CodeLooks) -> list[int]:
    """Of the places in the code, those inside of such libraries, and the rest of lines that are mostly inside of them."""
    looks = np.bincount(code.place, minlength=len(code.places))
    by_line: dict[tuple[str, int, str], list[int]] = {}
    for number, one in enumerate(code.places):
        by_line.setdefault((one.file, one.line, one.function), []).append(number)
    found = []
    for members in by_line.values():
        inside = [number for number in members if code.libraries[number] in HOST_LIBRARIES]
        is_most = looks[inside].sum() > _MOST_OF_A_LINE * looks[members].sum()
        found += members if is_most else inside
    return found


def _line(facts: Facts, part: str) -> Place | None:
    """The line that calls most of it."""
    assert facts.code is not None
    others = frozenset(facts.code.libraries) - HOST_LIBRARIES
    chosen = [
        place for place in facts.code.lines_of(part, range(len(facts.ranks)), without=others) if place.mean_ns > 0
    ]
    return max(chosen, key=lambda place: place.mean_ns, default=None)


def _by_library(facts: Facts, parts: Sequence[str]) -> dict[str, float]:
    """What each of the libraries takes of a mean step, ns."""
    code = facts.code
    assert code is not None
    found: dict[str, float] = {}
    rows = range(len(facts.ranks))
    for part in parts:
        for number, ns in enumerate(code.spent(code.chosen(part, rows), part, rows).tolist()):
            library = code.libraries[number]
            if library in HOST_LIBRARIES and ns > 0:
                found[library] = found.get(library, 0.0) + ns
    return found
