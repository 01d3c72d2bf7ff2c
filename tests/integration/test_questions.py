"""Ten questions that an engineer asks, each answered from the first screen, with the clicks counted as the guide counts them."""

import re

import pytest
from playwright.sync_api import Locator, Page

from .browser import needs_chromium
from .ranks import REPOSITORY
from .test_timeline_page import cells, painted

pytestmark = [
    needs_chromium,
    pytest.mark.timeout(600),
]


class Visitor:
    """Somebody who has opened the first screen, and whose clicks and keys are counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, what: Locator | str) -> None:
        """Click on a link of the navigation by its name, or on anything."""
        self.clicks += 1
        place = self.page.locator("#pages a", has_text=what) if isinstance(what, str) else what
        place.click()

    def press(self, key: str) -> None:
        self.clicks += 1
        self.page.keyboard.press(key)

    def card(self, heading: str | re.Pattern[str]) -> Locator:
        """The part of the page with that heading, once it is there."""
        found = self.page.locator("section.card", has=self.page.locator("h2", has_text=heading)).first
        found.wait_for()
        return found


@pytest.fixture
def visitor(page: Page) -> Visitor:
    return Visitor(page)


def arrive(visitor: Visitor, address: str) -> None:
    visitor.page.goto(address)
    visitor.page.locator("#verdict-sentence").wait_for()


def clicks_of(question: str) -> int:
    """What the guide promises."""
    guide = (REPOSITORY / "docs" / "dashboard.md").read_text()
    found = re.search(rf"^\| {re.escape(question)} \|.*\| (\d) \|$", guide, re.MULTILINE)
    assert found is not None, question
    return int(found[1])


def test_what_slows_the_run(visitor: Visitor, slow_rank: str) -> None:
    """Rank, part, remedy and gain; and where the slow rank's time goes beside a typical one's."""
    arrive(visitor, slow_rank)
    assert "Rank 1 works" in visitor.page.locator("#verdict-sentence").inner_text()
    assert "in forward" in visitor.page.locator("#verdict-sentence").inner_text()
    assert re.search(r"Expected: [45]\d% less", visitor.page.locator(".verdict").inner_text())
    visitor.card("Rank 1 beside a typical rank")

    assert visitor.clicks == clicks_of("What slows the run, on which rank, and what is it worth?")


def test_who_waits_for_whom(visitor: Visitor, slow_rank: str) -> None:
    arrive(visitor, slow_rank)
    visitor.click("Ranks")
    row = visitor.card("Who waits for whom").locator("tbody tr").first.inner_text().split("\t")

    assert row[:2] == ["rank 0", "rank 1"]
    assert 40 < float(row[2].split()[0]) < 60  # ms
    assert visitor.clicks == clicks_of("Who waits for whom, and how long?")


def test_what_was_different_in_a_step(visitor: Visitor, slow_rank: str) -> None:
    """The longest one: a click on its bar says by which part it is longer than the median."""
    arrive(visitor, slow_rank)
    visitor.click("Steps")
    visitor.card(re.compile("^Every step, by part"))
    visitor.click(visitor.page.locator("[data-chosen] svg"))
    drawer = visitor.page.locator("#step-drawer")
    drawer.wait_for()

    assert re.search(r"Step \d+ on rank 1: [\d.]+ ms, [\d.]+ times the median", drawer.inner_text())
    assert drawer.locator("tbody tr").count() >= 3
    assert visitor.clicks == clicks_of("What was different in one step?")


def test_where_a_batch_is_made(visitor: Visitor, slow_rank: str) -> None:
    """The stages of a batch, and the slowest of those who make batches."""
    arrive(visitor, slow_rank)
    visitor.click("Data")
    stages = visitor.card("Stages of a batch")
    assert {"dataset", "collate"} <= set(stages.locator("svg text").all_text_contents()) | set(
        re.findall(r"\w+", stages.inner_text())
    )
    assert "ms" in visitor.card("Loaders of batches").locator("tbody tr").first.inner_text()

    assert visitor.clicks == clicks_of("Which stage of data loading takes the time?")


def test_which_tensor_is_exposed(visitor: Visitor, huge_gradient: str) -> None:
    """By tensor, longest first, in ms of a step."""
    arrive(visitor, huge_gradient)
    visitor.click("Communication")
    visitor.click(visitor.page.get_by_role("link", name="tensor", exact=True))
    chart = visitor.card("What the training waits for, by tensor")
    names = chart.locator("svg text").all_text_contents()

    assert next(name for name in names if "." in name and not re.fullmatch(r"[\d.]+", name)).endswith("huge.weight")
    assert visitor.clicks == clicks_of("Which tensor's allreduce is exposed?")


def test_which_spans_are_longest(visitor: Visitor, slow_rank: str) -> None:
    """Of all ranks, or of one: the table begins with them."""
    arrive(visitor, slow_rank)
    visitor.click("Timeline")
    painted(visitor.page)
    visitor.press("t")
    first = cells(visitor.page, "spans", 0)
    longest = visitor.page.evaluate("fetch('/data/spans?order=duration&descending=1&limit=1').then(a => a.json())")

    assert first[0] == longest["spans"][0]["name"]
    assert visitor.clicks == clicks_of("Which spans are longest?")


def test_how_much_communication_is_hidden(visitor: Visitor, slow_rank: str) -> None:
    """Exposed and hidden time, and the bandwidth that the wire gives."""
    arrive(visitor, slow_rank)
    visitor.click("Communication")
    rows = dict(
        row.split("\t") for row in visitor.card("How communication does").locator("tbody").inner_text().splitlines()
    )
    assert re.match(r"[\d.]+ ms \(\d+% of a step\)", rows["exposed: the training of rank 0 waits, longest"])
    assert re.match(r"[\d.]+", rows["hidden behind computation"])
    assert visitor.card(re.compile("bandwidths in GB/s")).locator("tbody tr").count() > 0

    assert visitor.clicks == clicks_of("How much communication is hidden, and how fast is it?")


def test_what_a_change_would_bring(visitor: Visitor, slow_rank: str) -> None:
    arrive(visitor, slow_rank)
    visitor.click(visitor.page.get_by_text("no stragglers"))
    visitor.page.get_by_text(re.compile(r"[1-9]\d% less\.$")).last.wait_for()

    assert visitor.clicks == clicks_of("What would a change bring?")


def test_what_is_worse_than_before(visitor: Visitor, slow_rank: str) -> None:
    """Against the run that was named: by how much, whether that is chance, and in which part."""
    arrive(visitor, slow_rank)
    visitor.click("Compare")
    lines = visitor.card("Parts of the mean step").locator("tbody").inner_text().splitlines()
    change = {line.split("\t")[0]: float(line.split("\t")[3].split()[0]) for line in lines}  # ms
    assert min(change["forward"], change["negotiate"]) > 10
    assert visitor.card("Steps").locator("tbody tr").first.inner_text().endswith("yes")

    assert visitor.clicks == clicks_of("What is worse than in the run before?")


def test_why_a_device_is_idle(visitor: Visitor, profile: str) -> None:
    """The reasons, the gaps by length, the kernels; and what fills the memory."""
    arrive(visitor, profile)
    visitor.click("Devices")
    times = visitor.card("The device: what a step").inner_text()
    assert "the host waits for the device" in times
    assert "cudaStreamSynchronize" in times
    gaps = visitor.card("Gaps of rank 0's device, by length")
    assert any(name.startswith("10 ms and more (1)") for name in gaps.locator("svg text").all_text_contents())
    assert "softmax_warp_forward" in visitor.card("Kernels: ").inner_text()
    visitor.card("Memory of rank 0: torch allocated").locator("svg text", has_text="peak 3 GB").wait_for()
    grown = visitor.card("What allocated the 2 GB").locator("tbody tr").first.inner_text().split("\t")
    assert grown == ["aten::softmax", "2 GB", "100%"]

    assert visitor.clicks == clicks_of("Why is the device idle, and what fills its memory?")


def test_there_are_ten() -> None:
    """As many as the guide lists, and a test for each."""
    guide = (REPOSITORY / "docs" / "dashboard.md").read_text()
    listed = re.findall(r"^\| ([^|]+\?) \|.*\| \d \|$", guide, re.MULTILINE)
    asked = re.findall(r"clicks_of\(\"([^\"]+)\"\)", (REPOSITORY / "tests/integration/test_questions.py").read_text())

    assert len(listed) == 10
    assert sorted(listed) == sorted(asked)
