"""Fixtures that every test may use."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("tlkit", deadline=None)
hypothesis.settings.load_profile("tlkit")

REPOSITORY = Path(__file__).resolve().parent.parent


#: Traces that other tools wrote for this project.
OWN = REPOSITORY / "tests" / "traces"
#: Traces of others, most of them of GPUs, which are not part of the repository.
SHARED = Path(os.environ.get("TL_SHARED", REPOSITORY.parent / "shared")) / "traces"


@pytest.fixture(scope="session")
def own_traces() -> Path:
    """The folder of recorded Horovod and Kineto files in the repository."""
    return OWN


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of Horovod, Kineto and Nsight files of others, which are not part of the repository."""
    if not SHARED.is_dir():
        pytest.skip("traces of others are absent: set TL_SHARED to the folder that holds traces/")
    return SHARED


@pytest.fixture(scope="session")
def real_traces() -> Callable[[str], list[Path]]:
    """Finds the recorded files that match a pattern: those of the repository, and those of others if they are there."""

    def find(pattern: str) -> list[Path]:
        own = sorted(path for path in OWN.glob(pattern) if path.suffix == ".gz")
        names = {path.name.removesuffix(".gz") for path in own}
        return [*own, *(path for path in sorted(SHARED.glob(pattern)) if path.name.removesuffix(".gz") not in names)]

    return find


@pytest.fixture(scope="session", autouse=True)
def heed_interrupts() -> None:
    """A shell that runs this in the background has it ignore SIGINT, and every process of a test would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def keep_traces_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The user's own cache is none of the tests' business."""
    os.environ["TLKIT_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
