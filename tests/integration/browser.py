"""The browser that page tests share, and pages in it that must not complain."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # most integration tests need no browser
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: More than is needed: machines that test are busy.
LONG_MS = 60_000
#: Of the modules that need it.
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@contextmanager
def visited(browser: "Browser", **options: Any) -> "Iterator[Page]":
    """A page that must not complain: neither an error in the console, nor one that nobody catches.

    Args:
        options: of `Browser.new_page`, beside the size of the window.
    """
    page = browser.new_page(viewport={"width": 1300, "height": 850}, **options)
    page.set_default_timeout(LONG_MS)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    page.close()
    assert complaints == []
