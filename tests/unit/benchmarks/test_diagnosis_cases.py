"""The cases of the diagnosis benchmark, and what they accept."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "diagnosis"))

from case import Case
from recorded import FOLDER
from run import CASES

STARVED = {"class": "compute", "cause": "starved-of-cores", "ranks": [0, 1]}
COLLECTED = {"class": "compute", "cause": "garbage-collection", "ranks": [0, 1]}


def report(*findings: dict[str, Any]) -> dict[str, Any]:
    """The first finding is the verdict."""
    return {"verdict": findings[0], "findings": list(findings)}


def test_each_case_has_a_folder_and_a_script() -> None:
    """Two cases of one slug would share their recordings."""
    slugs = [case.slug for case in CASES]

    assert len(set(slugs)) == len(slugs)
    assert [case.name for case in CASES if not (FOLDER / case.script).is_file()] == []


def test_a_loaded_machine_excuses_no_missing_fault() -> None:
    case = Case("", "none", "compute", ("garbage-collection",), (0, 1), may_lack_cores=True)

    assert case.accepts(report(COLLECTED))
    assert case.accepts(report(STARVED, COLLECTED))
    assert not case.accepts(report(STARVED))
    assert not case.accepts(report(STARVED, {**COLLECTED, "ranks": [1]}))
    assert Case("", "none", "healthy", may_lack_cores=True).accepts(report(STARVED))
    assert not Case("", "none", "compute", ("garbage-collection",)).accepts(report(STARVED, COLLECTED))


def test_other_causes_are_right_whatever_their_class() -> None:
    assert Case("", "none", "healthy", also_causes=("garbage-collection",)).accepts(report(COLLECTED))
    assert not Case("", "none", "healthy").accepts(report(COLLECTED))
