"""Fixtures that every test may use."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("tlkit", deadline=None)
hypothesis.settings.load_profile("tlkit")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real Horovod, Kineto and Nsight files, which are not part of the repository."""
    root = Path(os.environ.get("TL_SHARED", REPOSITORY.parent / "shared")) / "traces"
    if not root.is_dir():
        pytest.skip("real traces are absent: set TL_SHARED to the folder that holds traces/")
    return root


@pytest.fixture(scope="session", autouse=True)
def heed_interrupts() -> None:
    """A shell that runs this in the background has it ignore SIGINT, and every process of a test would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def keep_traces_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The user's own cache is none of the tests' business."""
    os.environ["TLKIT_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
