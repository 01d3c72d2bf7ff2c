"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real Horovod, Kineto and Nsight files, which are not part of the repository."""
    root = Path(os.environ.get("TL_SHARED", REPOSITORY.parent / "shared")) / "traces"
    if not root.is_dir():
        pytest.skip("real traces are absent: set TL_SHARED to the folder that holds traces/")
    return root
