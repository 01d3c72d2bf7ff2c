"""The first screen of a run that was opened before, in a real browser: it is there before the run is opened, and it is right."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.attack.harness import wait_for as until
from tlkit.timeline.read import cache_entries

from .browser import needs_chromium, visited
from .test_dashboard import HELD, SLOW_RANK, answering, is_quiet, stop

SENTENCE = "longer than the other rank in every step, in forward"

pytestmark = needs_chromium


@contextmanager
def served(gate: Path, cache: Path) -> Iterator[str]:
    """A dashboard that analyses its run once the gate is there."""
    process, url = answering([sys.executable, "-c", HELD, str(SLOW_RANK), str(gate), str(cache)])
    try:
        yield url
    finally:
        stop(process)


def said(page: Page) -> dict[str, Any]:
    """All that the first screen says and links to, once its charts are drawn."""
    page.get_by_text(SENTENCE).first.wait_for()
    page.wait_for_selector("#page [data-svg] svg")
    charts = "Array.from(document.querySelectorAll('#page [data-svg]'))"
    until(lambda: page.evaluate(f"{charts}.every(place => place.querySelector('svg'))"), "some charts are not drawn")
    page.wait_for_selector("#what-if [role=slider]")
    page.get_by_text("Move a slider").wait_for()
    links = "Array.from(document.querySelectorAll('a[href]'), link => [link.innerText, link.getAttribute('href')])"
    return {
        "page": page.locator("#page").inner_text(),
        "run": page.locator("#run").inner_text(),
        "title": page.title(),
        "links": page.evaluate(links),
        "charts": page.evaluate("Array.from(document.querySelectorAll('#page svg'), chart => chart.outerHTML)"),
    }


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache in which the first screen of a run was kept when the run was opened, and what the screen said then."""
    folder = tmp_path_factory.mktemp("opened")
    (folder / "gate").touch()
    with served(folder / "gate", folder / "cache") as url, visited(browser) as page:
        page.goto(url)
        first = said(page)
        until(lambda: list(folder.glob("cache/*/*.screen")), "the first screen is not kept")
    return folder / "cache", first


def test_it_comes_before_the_run_is_opened(
    browser: Browser, opened: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """And says the same; nothing of it is made anew when the run has been opened, and then all that needs the run works."""
    cache, before = opened
    gate = tmp_path / "gate"
    with served(gate, cache) as url, visited(browser) as page, visited(browser) as other:
        page.goto(url)
        assert said(page) == before
        other.goto(f"{url}ranks", wait_until="commit")
        page.locator("#verdict-sentence").evaluate("sentence => { sentence.isTheSame = true; }")
        page.locator("#theme-switch").click()
        page.wait_for_function("() => !document.getElementById('verdict-sentence')?.isTheSame")
        page.locator("#verdict-sentence").evaluate("sentence => { sentence.isTheSame = true; }")
        gate.touch()
        other.get_by_text("Who waits for whom").first.wait_for()
        assert is_quiet(page, 2500)
        assert page.locator("#verdict-sentence").evaluate("sentence => sentence.isTheSame")
        page.get_by_text("no stragglers").click()
        page.get_by_text("A step would take").wait_for()
        page.get_by_text("Look closer").click()
        page.get_by_text("Who waits for whom").first.wait_for()


def test_what_the_run_does_not_say_is_gone_with_it(
    browser: Browser, opened: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A screen that should not be there is text, and the run's own replaces it, and is kept in its place."""
    gate, cache = tmp_path / "gate", tmp_path / "cache"
    (path,) = opened[0].glob("*/*.screen")
    screen = json.loads(path.read_bytes()[20:])  # behind the digest
    mark = "<img src=x onerror=window.hacked=1>"
    text = json.dumps(screen).replace(SENTENCE, mark)
    cache_entries.add_screen(cache, path.stem, text.encode())
    (kept,) = cache.glob("*/*.screen")
    with served(gate, cache) as url, visited(browser) as page:
        page.goto(url)
        page.get_by_text(mark).first.wait_for()
        gate.touch()
        page.get_by_text(SENTENCE).first.wait_for()
        assert page.get_by_text(mark).count() == 0
        assert page.evaluate("window.hacked") is None
        until(lambda: SENTENCE.encode() in kept.read_bytes(), "the right screen is not kept")


def test_the_timeline_is_drawn_as_soon_as_the_run_is_there(
    browser: Browser, opened: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Its page stays as it is, and what is asked too early is asked again."""
    cache, _ = opened
    gate = tmp_path / "gate"
    asked: list[str] = []

    def too_early(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.fulfill(status=202, json={"error": "the run is being opened"})
        else:
            route.continue_()

    with served(gate, cache) as url, visited(browser) as page:
        page.route("**/data/rows*", too_early)
        page.goto(f"{url}timeline")
        page.get_by_text("the run is being opened").wait_for()
        page.locator("#timeline").evaluate("place => { place.isTheSame = true; }")
        gate.touch()
        page.wait_for_selector("#timeline[data-painted]")
        until(lambda: not page.locator("#timeline-details").inner_text(), "it says that it waits, and does not")
        until(lambda: is_quiet(page, 1200), "it goes on asking")

        assert page.locator("#timeline").evaluate("place => place.isTheSame")
        assert len(asked) >= 2  # more on a machine where the run takes longer to open
