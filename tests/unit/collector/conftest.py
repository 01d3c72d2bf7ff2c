"""What holds for every test of the collector."""

import threading
from collections.abc import Iterator

import pytest

_LONG_S = 60.0


@pytest.fixture(autouse=True)
def no_follower_is_left() -> Iterator[None]:
    """A test whose collector goes on would disturb those after it."""
    yield
    left = [thread for thread in threading.enumerate() if thread.name == "tlkit-follower"]
    for thread in left:
        thread.join(_LONG_S)  # it may be about to end
    assert not any(thread.is_alive() for thread in left), "a follower was not stopped"
