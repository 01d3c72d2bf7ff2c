"""Dashboards that several modules look at, served once, and the browser that they are looked at with."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.collector.test_device import kernel, kineto, launch

from .browser import CHROMIUM, FLAGS, visited
from .ranks import REPOSITORY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TRACES = REPOSITORY / "samples" / "traces"


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """For one module only: while it is there, no other test can have an event loop on this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A page that must not complain."""
    with visited(browser) as page:
        yield page


def _served(*arguments: str) -> Iterator[str]:
    from .test_dashboard import serve, stop

    process, url = serve(*arguments)
    yield url.rstrip("/")
    stop(process)


@pytest.fixture(scope="session")
def slow_rank() -> Iterator[str]:
    """Two ranks, of which the second sleeps 50 ms in each forward pass; beside it the same without that."""
    name = "t.json.gz"
    yield from _served(str(TRACES / "slow-rank" / name), "--compare", str(TRACES / "healthy" / name))


@pytest.fixture(scope="session")
def huge_gradient() -> Iterator[str]:
    """One tensor is nearly all of the bytes."""
    yield from _served(str(TRACES / "huge-gradient" / "t.json.gz"))


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A profile of a GPU: in each step of 100 ms the host waits 57 ms for the device, and softmax brings memory to 3 GB."""
    path = tmp_path_factory.mktemp("profile") / "t.json"

    def allocated(at_ms: float, gigabytes: float) -> dict[str, Any]:
        args = {"Total Allocated": int(gigabytes * 1e9), "Total Reserved": 4 * 10**9, "Device Type": 1, "Device Id": 0}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at_ms, "dur": 0, "args": args}

    events = [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0.5, "dur": 2}, allocated(1, 1), launch(1.5, 1), kernel("gemm", 2, 20, 1),
        {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 3, "dur": 76},
        {"cat": "cpu_op", "name": "aten::softmax", "ts": 79.5, "dur": 2}, allocated(80, 3), launch(80.5, 2),
        kernel("softmax_warp_forward", 81, 18, 2), allocated(99, 0.5),
    ]  # fmt: skip
    yield from _served(str(kineto(path, events, steps=20, step_ms=100)))
