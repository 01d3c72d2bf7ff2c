"""The pages in a real browser, over recorded samples: what they tell, and that everybody can use them."""

import gzip
import re
import shutil
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from .browser import LONG_MS, needs_chromium, visited
from .ranks import REPOSITORY
from .test_dashboard import PAGES, serve, stop, wait_for
from .test_timeline_page import open_at, until

SAMPLES = REPOSITORY / "samples" / "traces"

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, as a collector keeps them."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("healthy", "no-fusion"):
        shutil.copytree(SAMPLES / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    process, url = serve(str(SAMPLES / "slow-rank"), "--compare", str(SAMPLES / "slow-loop"), "--runs", str(runs))
    yield url.rstrip("/")
    stop(process)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must not complain; scripts of tests may be put into it."""
    with visited(browser, bypass_csp=True) as page:
        yield page


def open_page(page: Page, address: str, name: str) -> None:
    """And wait until it has been drawn."""
    page.goto(f"{address}/{name}")
    page.wait_for_selector("#page > *")
    page.wait_for_selector("#page [data-svg] svg" if name != "timeline" else "#timeline canvas")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_is_shut_out(page: Page, address: str, theme: str) -> None:
    """axe finds nothing on any page: names, roles, contrast, keyboard."""
    axe = pytest.importorskip("axe_playwright_python")
    script = (resources.files(axe) / "axe.min.js").read_text()
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    found = {}
    for name in PAGES:
        open_page(page, address, name)
        page.evaluate(script)
        violations = page.evaluate("axe.run()")["violations"]
        found[name] = [(item["id"], item["nodes"][0]["html"]) for item in violations]
    assert {name: items for name, items in found.items() if items} == {}


def test_a_phone_scrolls_tables_and_never_the_page(page: Page, address: str) -> None:
    """At 390 pixels: nothing is wider than the screen, one row of the header stays, no word is broken in a table."""
    page.set_viewport_size({"width": 390, "height": 844})
    for name in PAGES:
        open_page(page, address, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        run = page.locator("#run").bounding_box()
        assert run is not None
        assert "2 ranks on" in page.locator("#run").inner_text()
        assert run["height"] < 40, name
        page.evaluate("document.querySelector('header').style.marginBottom = '2000px'; scrollTo(0, 200)")
        page.wait_for_function("scrollY > 100")
        assert page.evaluate("document.querySelector('header').getBoundingClientRect().bottom") < 70, name
        page.evaluate("document.querySelector('header').style.marginBottom = ''; scrollTo(0, 0)")
        here = page.locator("header nav a[aria-current]").bounding_box()
        assert here is not None
        assert 0 <= here["x"] <= here["x"] + here["width"] <= 390, name
        # Of the text, since a cell is as high as its row.
        broken = page.evaluate("""[...document.querySelectorAll('th, td.number, td.short')].filter(cell => {
          const text = document.createRange();
          text.selectNodeContents(cell);
          const lines = text.getBoundingClientRect().height / parseFloat(getComputedStyle(cell).lineHeight);
          return cell.querySelector('a') === null && cell.parentElement.children.length > 1 && lines > 2.5;
        }).map(cell => cell.textContent)""")
        assert broken == [], name
    open_page(page, address, "communication")
    beyond = page.evaluate("""[...document.querySelectorAll('#page table:not(:has(thead)) td')]
      .filter(cell => cell.getBoundingClientRect().right > innerWidth).map(cell => cell.textContent)""")
    assert beyond == []


def test_a_phone_shows_names_of_lanes_and_spans_whole(page: Page, address: str) -> None:
    """What ranks have in common is not cut, the timeline keeps more than half of the screen, and words stay in one piece."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}/timeline?panel=spans")
    page.wait_for_selector("#timeline[data-painted]")
    page.wait_for_selector("#timeline-spans td")
    widths = page.evaluate("""(() => { const t = window.tlkit.timeline, g = t.canvas.getContext("2d"); g.font = "12px system-ui, sans-serif";
      return [t.gutter - 32, ...["data loading", "communication", "▸ 164 tensors"].map(name => g.measureText(name).width)]; })()""")
    assert max(widths[1:]) <= widths[0]
    assert page.evaluate("document.getElementById('timeline').getBoundingClientRect().top") < 300
    assert page.evaluate("document.getElementById('timeline').offsetHeight") > 400
    broken = page.evaluate("""[...document.querySelectorAll('#timeline-spans td')].filter(cell => {
      const text = document.createRange(); text.selectNodeContents(cell);
      return !/\\s/.test(cell.textContent) && text.getClientRects().length > 1 && !cell.querySelector('button'); }).map(cell => cell.textContent)""")
    assert broken == []


def test_the_first_visit_is_light(page: Page, address: str) -> None:
    """Of the six megabytes that it once was less than half a megabyte travels."""
    travelled: list[int] = []
    client = page.context.new_cdp_session(page)
    client.send("Network.enable")
    client.on("Network.loadingFinished", lambda event: travelled.append(int(event["encodedDataLength"])))
    for name in PAGES[:6]:
        open_page(page, address, name)
    assert 50_000 < sum(travelled) < 1_500_000
    assert page.evaluate("typeof window.Plotly") == "undefined"


def test_a_run_with_everything_has_all_pages(page: Page, address: str) -> None:
    """A run with everything has all pages; what others have is in the unit tests."""
    open_page(page, address, "verdict")
    assert page.locator("header nav a").all_inner_texts() == [name.capitalize() for name in PAGES]


def test_a_step_opens_its_drawer(page: Page, address: str) -> None:
    """A click on the chart says what was different in the step; dragging shows a stretch; the address holds both."""
    open_page(page, address, "steps")
    assert page.locator(".choices .here").first.inner_text() == "rank 1 (slowest)"
    box = page.locator("[data-chosen] svg").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.click(box["x"] + box["width"] * 0.5, middle)
    page.wait_for_selector("#step-drawer")
    assert "times the median" in page.locator("#step-drawer h2").inner_text()
    assert "step=" in page.url
    page.locator("[data-chosen] svg").scroll_into_view_if_needed()
    box = page.locator("[data-chosen] svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    page.wait_for_url("**from=*")
    page.wait_for_selector("#step-drawer")
    page.get_by_role("link", name="close").click()
    page.locator("#step-drawer").wait_for(state="detached")


def test_sliders_are_in_the_address(page: Page, browser: Browser, address: str) -> None:
    """Where they stand, and what that would bring: in a link, after back, and gone from it when all is as it is."""
    open_page(page, address, "verdict")
    slider, answer = page.locator("#what-if [role=slider]").first, page.locator("#what-if-answer")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.get_by_text("no stragglers").click()
    page.wait_for_url("**/verdict?what-if=data%3A95%2Cstraggler%3Dnone")
    answer.get_by_text(re.compile(r"[1-9]\d% less\.$")).wait_for()  # that of both
    said, link = answer.inner_text(), page.url
    page.get_by_role("link", name="Ranks").click()
    page.get_by_text("Who waits for whom").first.wait_for()
    page.go_back()
    answer.get_by_text(said).wait_for()
    with visited(browser) as other:
        other.goto(link)
        other.locator("#what-if-answer").get_by_text(said).wait_for()
        assert other.locator("#what-if [role=slider]").first.get_attribute("aria-valuenow") == "95"
        assert other.url == link
        other.locator("#what-if [role=slider]").first.focus()
        other.keyboard.press("ArrowRight")
        other.get_by_text("no stragglers").click()
        other.wait_for_url("**/verdict")


def test_paper_shows_what_is_folded(page: Page, address: str) -> None:
    """Printed in dark, too: evidence and words are open, nothing scrolls, and the ink is dark."""
    open_page(page, address, "verdict")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    cell = page.locator("details[data-key] td").first
    assert not cell.is_visible()
    page.emulate_media(media="print")
    assert cell.is_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(31, 41, 51)"
    assert {
        page.evaluate("e => getComputedStyle(e).overflowX", each) for each in page.locator(".scrolls").element_handles()
    } == {"visible"}
    assert not page.locator("#what-if").is_visible()


def test_compare_chooses_among_the_runs_that_were_offered(page: Page, address: str) -> None:
    """Those that were named and those of the folder, by name; a path is none of them."""
    open_page(page, address, "compare")
    names = page.locator("nav[aria-label=Before] a").all_inner_texts()
    assert names[0] == "slow-loop"
    assert set(names[1:]) == {"healthy", "no-fusion"}
    wait_for(page, "before", LONG_MS / 1000)
    page.get_by_role("link", name="healthy").click()
    page.wait_for_url("**before=healthy")
    page.get_by_text("healthy: t.json.gz").wait_for()
    page.goto(f"{address}/compare?before=/etc/passwd")
    page.wait_for_selector("nav[aria-label=Before] a.here")
    assert page.locator("nav[aria-label=Before] a.here").inner_text() == "slow-loop"


def test_new_steps_leave_alone_what_somebody_holds(page: Page, tmp_path: Path) -> None:
    """A live run: what somebody holds stays while steps come; the pulse says how the run does."""
    lines = {
        name: gzip.decompress((SAMPLES / "slow-rank" / f"{name}.gz").read_bytes()).splitlines(keepends=True)
        for name in ("t.json", "t.rank1.json")
    }

    def write(begin: float, end: float) -> None:
        for name, content in lines.items():
            with (tmp_path / name).open("ab") as file:
                file.write(b"".join(content[round(len(content) * begin) : round(len(content) * end)]))

    write(0, 0.6)
    process, url = serve(str(tmp_path / "t.json"), "--follow")
    try:
        page.goto(url)
        page.wait_for_selector("#what-if [role=slider]")
        wait_for(page, "ranks connected", LONG_MS / 1000)
        seen = page.locator("#run").inner_text()

        def write_more(begin: float, end: float) -> None:
            nonlocal seen
            page.evaluate("document.querySelector('.verdict').dataset.mark = 'before'")
            write(begin, end)
            deadline = time.monotonic() + LONG_MS / 1000
            while page.locator("#run").inner_text() == seen and time.monotonic() < deadline:
                page.wait_for_timeout(100)
            assert page.locator("#run").inner_text() != seen
            seen = page.locator("#run").inner_text()
            page.locator(".verdict[data-mark=before]").wait_for(state="detached")

        words = page.locator("details.words summary")
        words.click()
        slider = page.locator("#what-if [role=slider]").first
        slider.focus()
        page.evaluate("document.activeElement.dataset.mark = 'held'")
        answers = set()
        for part in range(3):
            page.keyboard.press("ArrowLeft")
            page.get_by_text("A step would take").wait_for()
            write_more(0.6 + part * 0.1, 0.7 + part * 0.1)
            assert page.evaluate("document.activeElement.dataset.mark") == "held"
            assert slider.get_attribute("aria-valuenow") == str(95 - part * 5)
            answers.add(page.locator("#what-if-answer").inner_text())
        assert len(answers) == 3  # each is about the run as it was by then
        # What is made anew is opened and focused as it was.
        assert words.locator("..").get_attribute("open") is not None
        link = page.get_by_role("link", name="See it on the timeline")
        link.focus()
        write_more(0.9, 1)
        assert page.evaluate("document.activeElement.textContent") == "See it on the timeline"
    finally:
        page.goto("about:blank")
        stop(process)


def test_names_come_by_themselves(page: Page, slow_rank: str) -> None:
    """What is drawn first has its names soon, also where the answer comes before anything else was drawn."""
    for address in ("timeline", "timeline?step=10", "timeline?from=1000000000&to=1000500000"):
        open_at(page, f"{slow_rank}/{address}")
        until(page, "[...window.tlkit.timeline.panes[0].names.values()].some(Boolean)")
