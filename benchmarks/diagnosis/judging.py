"""What the analysis says of recorded runs, two at a time."""

import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from recorded import is_recorded, trace_of

Report = dict[str, Any]


def analyse(folder: Path) -> Report:
    """The report of a recorded run; what went wrong, as a verdict, where there is none."""
    from tlkit.collector import analyze, make_report  # noqa: PLC0415  recording needs no analysis
    from tlkit.timeline import TraceError  # noqa: PLC0415

    try:
        report: Report = make_report(analyze(trace_of(folder)))
    except TraceError as error:
        return _failed(str(error))
    except Exception as error:  # a defect of the analysis is a wrong verdict, and the other cases go on
        return _failed(f"{type(error).__name__}: {error}")
    return report


def _failed(message: str) -> Report:
    verdict = {"class": "failed", "cause": message, "ranks": [], "predicted_gain": 0.0, "sentence": message}
    return {"verdict": verdict, "findings": []}


def analyse_all(folders: Iterable[Path]) -> dict[Path, Report]:
    """Reports of all complete runs among `folders`."""
    complete = [folder for folder in folders if is_recorded(folder)]
    # The analysis is as of now: a fresh process imports it anew.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        reports = []
        for number, report in enumerate(pool.map(analyse, complete), start=1):
            reports.append(report)
            if sys.stderr.isatty():
                print(f"\r{number} of {len(complete)} analysed", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return dict(zip(complete, reports, strict=True))
