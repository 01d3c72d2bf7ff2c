"""horovod.keras on real ranks, on each backend of Keras."""

from functools import cache

import pytest

from .job import expect_fine, run_job
from .test_tensorflow import checks_of

RUNS = [("tensorflow", "gloo", 2), ("torch", "mpi", 2), ("jax", "gloo", 2), ("tensorflow", "mpi", 4)]


@cache
def said(backend: str, transport: str, size: int) -> dict[str, list[object]]:
    """What came of a job, which runs once."""
    return run_job("keras_fit", size, backend, transport=transport)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "transport", "size"), RUNS)
@pytest.mark.parametrize("check", checks_of("keras_fit"))
def test_fit(check: str, backend: str, transport: str, size: int) -> None:
    """The optimizer, the callbacks, files and elastic state."""
    expect_fine(said(backend, transport, size), check, size)
