"""horovod.keras on real ranks, on each backend of Keras."""

from functools import cache

import pytest

from .job import checks_of, expect_fine, run_job

RUNS = [("tensorflow", "gloo", 2), ("torch", "mpi", 2), ("jax", "shm", 2)]

#: Of the checks those in which four ranks differ from two.
OF_FOUR = ("parameters", "sums", "local_variables_stay")


@cache
def said(backend: str, transport: str, size: int, checks: tuple[str, ...] = ()) -> dict[str, list[object]]:
    """What came of a job, which runs once."""
    return run_job("keras_fit", size, backend=backend, transport=transport, checks=checks)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "transport", "size"), RUNS)
@pytest.mark.parametrize("check", checks_of("keras_fit"))
def test_fit(check: str, backend: str, transport: str, size: int) -> None:
    """The optimizer, the callbacks, files and elastic state."""
    expect_fine(said(backend, transport, size), check, size)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", OF_FOUR)
def test_fit_on_four_ranks(check: str) -> None:
    """Gradients and variables that come of more than one other rank."""
    expect_fine(said("tensorflow", "shm", 4, OF_FOUR), check, 4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", checks_of("keras2_fit"))
def test_fit_of_keras_2(check: str) -> None:
    """The same of tf-keras, where TF_USE_LEGACY_KERAS=1 asks for it."""
    expect_fine(said_of_keras_2(), check, 2)


@cache
def said_of_keras_2() -> dict[str, list[object]]:
    """What came of the job, which runs once."""
    return run_job("keras2_fit", 2, backend="keras 2", transport="mpi", environment={"TF_USE_LEGACY_KERAS": "1"})
