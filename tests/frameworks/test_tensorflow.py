"""horovod.tensorflow on real ranks: every operation, and trainings against one process with the whole batch."""

from functools import cache

import pytest

from .job import checks_of, expect_fine, run_job

RANKS = [("mpi", 2), ("gloo", 4)]


@cache
def said(job: str, transport: str, size: int) -> dict[str, list[object]]:
    """What came of a job, which runs once."""
    return run_job(job, size, transport=transport)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("transport", "size"), RANKS)
@pytest.mark.parametrize("check", checks_of("operations"))
def test_operations(check: str, transport: str, size: int) -> None:
    """Eagerly and in graphs, on all dtypes, with gradients and errors."""
    expect_fine(said("operations", transport, size), check, size)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("transport", "size"), RANKS)
@pytest.mark.parametrize("check", checks_of("training"))
def test_training(check: str, transport: str, size: int) -> None:
    """The gradient tape, and what belongs to it."""
    expect_fine(said("training", transport, size), check, size)
