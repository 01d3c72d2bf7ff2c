"""The diagnosis on simulated jobs whose truth is known; benchmarks/diagnosis/simulated.py tries thousands."""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "diagnosis"))

from simulated import summarise, try_case
from simulator.cases import MIXTURE

CASES: Final = 100
SEED: Final = 7_000_000

#: The goals are 0.98, 0.99, 5 and 15.
MIN_TOP_RIGHT: Final = 0.9
MIN_HEALTHY_CLEAN: Final = 0.97
MAX_GAIN_ERROR_MEDIAN: Final = 3.0
MAX_GAIN_ERROR_P95: Final = 35.0


@pytest.mark.timeout(900)  # half a minute on two idle cores
def test_the_diagnosis_of_simulated_jobs_is_right() -> None:
    one = partial(try_case, only="", file_format="mixed", keep=None)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        verdicts = list(pool.map(one, range(SEED, SEED + CASES), chunksize=5))
    figures = summarise(verdicts)
    wrong = "\n".join(
        f"{verdict.format} seed {verdict.seed}: {verdict.expected}\n    found {verdict.found}"
        for verdict in verdicts
        if not verdict.is_right
    )
    assert {verdict.format for verdict in verdicts} == set(MIXTURE)
    assert not any("error" in verdict.found.split(":")[0] for verdict in verdicts), wrong
    assert figures["top_right"] >= MIN_TOP_RIGHT, f"{figures}\n{wrong}"
    assert figures["healthy_clean"] >= MIN_HEALTHY_CLEAN, f"{figures}\n{wrong}"
    assert figures["gain_error_median"] <= MAX_GAIN_ERROR_MEDIAN, figures
    assert figures["gain_error_p95"] <= MAX_GAIN_ERROR_P95, figures
