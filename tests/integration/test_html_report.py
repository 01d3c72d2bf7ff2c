"""The HTML report in a real browser: on screens, light and dark, and on paper."""

from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tlkit.collector.analysis import analyze
from tlkit.collector.reports.html import to_html
from tlkit.collector.reports.summary import summarize

from .browser import needs_chromium
from .ranks import REPOSITORY

pytestmark = needs_chromium

#: Cells that begin with a digit and have more than one line.
BROKEN = """() => Array.from(document.querySelectorAll('td')).filter(cell => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return /^[0-9]/.test(cell.textContent) && text.getClientRects().length > 1;
}).map(cell => cell.textContent)"""
COLOURS = "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; }"


def test_a_report_is_for_every_screen_and_for_paper(browser: Browser, tmp_path: Path) -> None:
    """axe finds nothing; on a narrow sheet numbers stay in one line, evidence is open, and dark screens print black on white."""
    axe = pytest.importorskip("axe_playwright_python")
    script = (resources.files(axe) / "axe.min.js").read_text()
    report = tmp_path / "report.html"
    analysis = analyze(REPOSITORY / "samples" / "traces" / "slow-rank")
    report.write_text(to_html(summarize(analysis), analysis))
    colours = {}
    for theme in ("light", "dark"):
        page = browser.new_context(viewport={"width": 700, "height": 900}, color_scheme=theme).new_page()
        page.goto(report.as_uri())
        page.evaluate(script)
        assert [item["id"] for item in page.evaluate("axe.run()")["violations"]] == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        colours[theme] = page.evaluate(COLOURS)
        assert not page.locator("details .evidence").first.is_visible()
        page.emulate_media(media="print")
        assert page.locator("details .evidence").first.is_visible()
        assert page.evaluate(BROKEN) == []
        colours[f"{theme} on paper"] = page.evaluate(COLOURS)
    assert colours["light"] != colours["dark"]
    assert colours["light on paper"] == colours["dark on paper"] == colours["light"]
