"""The timeline as a tool, in a real browser: what an engineer asks it, each with the clicks and keys that it takes."""

import json
import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from .browser import LONG_MS, needs_chromium
from .test_dashboard import serve, stop

pytestmark = [
    needs_chromium,
    pytest.mark.timeout(600),  # several servers and a browser, on whatever machine
]


def until(page: Page, expression: str) -> None:
    """Wait until it holds.  Asked from here: under the page's policy a script may not evaluate text."""
    deadline = time.monotonic() + LONG_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def painted(page: Page) -> str:
    """What stretch the timeline has drawn, once it has drawn what the address asks for."""
    until(page, "window.tlkit?.timeline?.isRestored && window.tlkit.timeline.element.dataset.painted")
    until(page, "!window.tlkit.timeline.busy")
    return str(page.locator("#timeline").get_attribute("data-painted"))


def wait_until_painted(page: Page, other_than: str) -> str:
    until(page, f"document.getElementById('timeline').dataset.painted !== '{other_than}'")
    return painted(page)


def open_at(page: Page, address: str) -> str:
    page.goto(address)
    return painted(page)


def press(page: Page, *keys: str) -> None:
    page.locator("#timeline").focus()
    for key in keys:
        page.keyboard.press(key)


def cells(page: Page, panel: str, row: int) -> list[str]:
    """The texts of a row of a panel's last table."""
    table = page.locator(f"#timeline-{panel} table").last
    line = table.locator("tbody tr").nth(row)
    line.wait_for()
    return [text.strip() for text in line.locator("td").all_inner_texts()]


def test_which_tensor_is_exposed(page: Page, huge_gradient: str) -> None:
    """From the first screen: the link to the evidence, the table, its column: three clicks."""
    page.goto(huge_gradient)
    page.get_by_text("See the evidence on the timeline").first.click()  # 1
    painted(page)
    page.locator("#timeline-table").click()  # 2
    page.locator("#timeline-spans th button", has_text="exposed").click()  # 3
    page.locator("#timeline-spans th[aria-sort=descending]", has_text="exposed").wait_for()
    rows = [cells(page, "spans", row) for row in range(2)]

    assert "allreduce.huge.weight" in {row[1] for row in rows}
    assert all("ALLREDUCE" in row[0] or row[1] == "communication" for row in rows)
    assert float(rows[0][6].split()[0]) > 5  # ms


def test_which_spans_are_longest(page: Page, slow_rank: str) -> None:
    """On the timeline one key, or one click; clicking a name goes there."""
    open_at(page, f"{slow_rank}/timeline")
    press(page, "t")
    first = cells(page, "spans", 0)
    spans = page.evaluate("fetch('/data/spans?order=duration&descending=1&limit=3').then(answer => answer.json())")[
        "spans"
    ]

    assert first[0] == spans[0]["name"]
    assert spans[0]["dur_ns"] >= spans[1]["dur_ns"] >= spans[2]["dur_ns"]
    before = painted(page)
    page.locator("#timeline-spans tbody button").nth(0).click()
    page.locator("#timeline-details h3").wait_for()
    assert page.locator("#timeline-details h3").inner_text() == first[0]
    press(page, "f")
    low, high = map(int, wait_until_painted(page, before).split(":"))
    assert low <= spans[0]["start_ns"] <= high


def test_search_by_tensor_and_by_args(page: Page, slow_rank: str) -> None:
    """`/`, the words, Enter: k of n; Enter again: the next. What only args hold is found, too."""
    open_at(page, f"{slow_rank}/timeline")
    press(page, "/")
    page.keyboard.type("blocks.3.first.weight")
    page.keyboard.press("Enter")
    matches = page.locator("#timeline-matches")
    matches.get_by_text(re.compile(r"^\d+ of [\d,]+ matches$")).wait_for()
    place, count = map(int, re.findall(r"\d+", matches.inner_text()))
    expected = page.evaluate("fetch('/data/spans?q=blocks.3.first.weight').then(answer => answer.json())")
    assert count == expected["count"] > 50
    page.keyboard.press("Enter")
    matches.get_by_text(f"{place + 1} of {count} matches").wait_for()
    assert "blocks.3.first.weight" in page.locator("#timeline-details").inner_text()
    page.locator("#timeline-query").fill('"module":"Faulty')
    page.keyboard.press("Enter")
    page.locator("#timeline-spans h4", has_text="By their args").wait_for()
    assert cells(page, "spans", 0)[0] == "FORWARD"


def test_a_region_says_what_it_holds(page: Page, slow_rank: str) -> None:
    """One drag on the ruler, over step 10: sums as the server's spans have them, and its ends are those of the step."""
    open_at(page, f"{slow_rank}/timeline?step=10")
    step = page.evaluate("fetch('/data/step?number=10').then(answer => answer.json())")
    box = page.locator("#timeline").bounding_box()
    assert box is not None
    left, right = (page.evaluate(f"window.tlkit.timeline.x({at})") for at in (step["low_ns"], step["high_ns"]))
    page.mouse.move(box["x"] + left + 3, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + (left + right) / 2, box["y"] + 10)
    page.mouse.move(box["x"] + right - 3, box["y"] + 10)
    page.mouse.up()
    panel = page.locator("#timeline-region")
    panel.get_by_text("Region of").wait_for()

    low, high, _ = (panel.get_attribute("data-of") or "").split(":")
    edges = page.evaluate(
        "(() => { const steps = window.tlkit.timeline.panes[0].steps; return [...steps.low_ns, ...steps.high_ns]; })()"
    )
    assert int(low) in edges
    assert int(high) in edges
    assert abs(int(low) - step["low_ns"]) + abs(int(high) - step["high_ns"]) < (step["high_ns"] - step["low_ns"]) / 5
    rows = {row.split("\t")[0]: row.split("\t") for row in panel.locator("table").last.inner_text().splitlines()}
    assert rows["FORWARD"][2] in {"2", "3"}  # of rank 1 the end of the step before may reach in
    assert "exposed" in page.locator("#timeline-overlap").inner_text()
    assert "null" not in panel.inner_text()
    panel.get_by_text("lane or tensor").click()
    panel.get_by_text("allreduce.stem.weight").first.wait_for()
    assert page.evaluate("document.querySelector('#timeline-region').offsetHeight") < 2 * 850  # 300 rows scroll
    # What lies before and after the run is none of the region.
    page.evaluate("window.tlkit.timeline.letGo()")
    page.evaluate("window.tlkit.timeline.region = [-1e9, 1e12]")
    page.evaluate("window.tlkit.timeline.showRegion()")
    end = page.evaluate("window.tlkit.timeline.rows.end_ns")
    assert page.evaluate("window.tlkit.timeline.region") == [0, end]


def test_a_link_brings_back_what_was_seen(page: Page, browser: Browser, slow_rank: str) -> None:
    """View, rows, chosen span, region, markers, search: opened elsewhere they are the same."""
    open_at(page, f"{slow_rank}/timeline?step=5")
    page.locator("#timeline-query").fill("FORWARD")
    page.keyboard.press("Enter")
    page.locator("#timeline-details h3", has_text="FORWARD").wait_for()
    press(page, "m", "c", "x", "w")
    page.evaluate("window.tlkit.timeline.addMarker(1500000000)")
    page.locator("#timeline-region h3").wait_for()
    page.wait_for_timeout(600)
    there = painted(page)
    state = "(() => { const t = window.tlkit.timeline; return JSON.stringify([{...t.state(), from: 0, to: 0}, t.chosen, t.hasPath, t.region, t.markers]); })()"
    seen = page.evaluate(state)
    link = page.url
    other = browser.new_page(viewport={"width": 1300, "height": 850})
    try:
        other.goto(link)
        painted(other)
        other.locator("#timeline-region h3").wait_for()
        other.wait_for_timeout(500)
        for mine, theirs in zip(painted(other).split(":"), there.split(":"), strict=True):
            assert abs(int(mine) - int(theirs)) <= 2  # ns: the address has whole ones
        found = json.loads(other.evaluate(state))
        assert found == json.loads(seen), (found, seen)
    finally:
        other.close()


def test_back_and_forward_bring_back_what_was_seen(page: Page, slow_rank: str) -> None:
    """What was chosen is a step in the history, from page to page and on this one; a link to this page is followed, too."""
    open_at(page, f"{slow_rank}/timeline?step=5")
    page.wait_for_timeout(400)
    of_step = painted(page)
    press(page, "Enter")
    page.wait_for_url("**&span=*")
    chosen = page.evaluate("window.tlkit.timeline.chosen")
    page.locator("#to-verdict").click()
    page.locator("#verdict-sentence").wait_for()

    page.go_back()
    until(page, f"window.tlkit.timeline?.chosen === {chosen}")
    painted(page)
    page.go_back()
    until(page, "window.tlkit.timeline.chosen === -1 && window.tlkit.timeline.isRestored")
    for there, before in zip(painted(page).split(":"), of_step.split(":"), strict=True):
        assert abs(int(there) - int(before)) <= 2  # ns: the address has whole ones
    assert page.locator("#timeline-details").inner_text() == ""
    page.go_forward()
    until(page, f"window.tlkit.timeline.chosen === {chosen}")
    page.locator("#to-timeline").click()
    until(page, "window.tlkit.timeline.chosen === -1 && window.tlkit.timeline.isRestored")
    until(page, "window.tlkit.timeline.view.length > 1e9")


def test_everything_by_keyboard(page: Page, slow_rank: str) -> None:
    """Choose a span, go to its neighbours and to the row below, follow an arrow, mark, fit, help, let go."""
    whole = open_at(page, f"{slow_rank}/timeline")
    title = page.locator("#timeline-details h3")
    press(page, "Enter")
    title.wait_for()
    number = page.evaluate("window.tlkit.timeline.chosen")
    press(page, "ArrowRight")
    until(page, f"window.tlkit.timeline.chosen > {number}")
    after = page.evaluate("[window.tlkit.timeline.span.start_ns, window.tlkit.timeline.span.row]")
    press(page, "ArrowDown")
    until(page, f"window.tlkit.timeline.span.row !== {after[1]}")
    assert page.evaluate("window.tlkit.timeline.span.lane") == "communication"
    press(page, "[")
    until(page, "window.tlkit.timeline.span.lane !== 'communication' || window.tlkit.timeline.span.rank === 1")
    press(page, "f")
    wait_until_painted(page, whole)
    press(page, "m")
    page.locator("#timeline-region h3").wait_for()
    press(page, "?")
    page.locator("#timeline-help h3").wait_for()
    press(page, "Escape")
    assert page.locator("#timeline-help h3").count() == 0
    assert page.locator("#timeline-region h3").count() == 1
    press(page, "Escape")
    assert page.locator("#timeline-region h3").count() == 0
    assert page.evaluate("window.tlkit.timeline.chosen") == -1
    for _ in range(40):
        page.keyboard.press("a")
    page.wait_for_timeout(300)
    low, high = map(int, painted(page).split(":"))
    assert -0.2 * (high - low) < low  # it stops where the run begins


def test_findings_lead_to_their_evidence(page: Page, slow_rank: str) -> None:
    """One click from the finding: the step, the rank, and the forward pass bright while the rest is pale."""
    page.goto(slow_rank)
    page.get_by_text("See the evidence on the timeline").first.click()
    painted(page)

    assert "spans of “forward” of rank 1 in step" in page.locator("#timeline-focus").inner_text()
    assert bright(page) == ["1:forward"]
    low, high = map(int, painted(page).split(":"))
    assert 60_000_000 < high - low < 200_000_000


def bright(page: Page) -> list[str]:
    """Ranks and categories of what is drawn and not pale."""
    found: list[str] = page.evaluate(
        """(() => { const t = window.tlkit.timeline, pane = t.panes[0], tile = pane.tile, scale = (tile.high - tile.low) / tile.columns, found = new Set();
        for (let k = 0; k < tile.count; k++) { const item = pane.itemOfRow.get(tile.rows[tile.row[k]]);
          if (!t.isDim(pane, item, tile.category[k], tile.low + tile.left[k] * scale, tile.low + tile.right[k] * scale)) found.add(`${item.rank}:${t.rows.categories[tile.category[k]]}`); }
        return [...found].sort(); })()"""
    )
    return found


def test_evidence_of_all_ranks_is_seen_where_ranks_are_collapsed(page: Page, slow_rank: str) -> None:
    """The first ranks are opened for it: a collapsed one has a single row, which may be another."""
    open_at(page, f"{slow_rank}/timeline?step=10&show=data")

    assert "spans of “waiting for data” in step 10" in page.locator("#timeline-focus").inner_text()
    assert page.evaluate("[...window.tlkit.timeline.options.unfolded]") == [0, 1]
    assert bright(page) == ["0:data", "1:data"]


def test_the_critical_path_is_on_the_timeline(page: Page, slow_rank: str) -> None:
    """One key; it lies on the slow rank's computation nearly all of the time, and covers the steps without a gap."""
    open_at(page, f"{slow_rank}/timeline?step=10")
    press(page, "c")
    until(page, "window.tlkit.timeline.panes[0].path.length > 0")
    stretches = page.evaluate(
        "window.tlkit.timeline.panes[0].path.map(([row, start, end, why]) => [window.tlkit.timeline.rows.ranks[row], start, end, why])"
    )
    for before, after in pairwise(stretches):
        assert before[2] == after[1]
    total = sum(end - start for _, start, end, _ in stretches)
    own = sum(end - start for rank, start, end, why in stretches if rank == 1 and why == "own work")
    assert own / total > 0.8


def test_a_step_beside_a_usual_one_and_beside_the_other_run(page: Page, slow_rank: str) -> None:
    """`B` once and twice: both begin at the same place on the screen, and say how long they are."""
    open_at(page, f"{slow_rank}/timeline?step=10")
    press(page, "b")
    until(page, "window.tlkit.timeline.panes.length === 2 && window.tlkit.timeline.panes[1].tile")
    words = page.evaluate("window.tlkit.timeline.panes.map(pane => pane.words)")
    assert words[0].startswith("step 10: ")
    assert words[1].startswith("a usual one, step ")
    press(page, "b")
    until(page, "window.tlkit.timeline.panes[1]?.run === '1' && window.tlkit.timeline.panes[1].tile")
    low = page.evaluate("fetch('/data/step?number=10&run=1').then(answer => answer.json())")["low_ns"]
    mine = page.evaluate("fetch('/data/step?number=10').then(answer => answer.json())")["low_ns"]
    assert page.evaluate(f"window.tlkit.timeline.panes[1].x({low}, window.tlkit.timeline.view)") == pytest.approx(
        page.evaluate(f"window.tlkit.timeline.x({mine})"), abs=1
    )
    press(page, "b")
    until(page, "window.tlkit.timeline.panes.length === 1")


def test_waits_have_the_colour_of_what_is_waited_for(page: Page, slow_rank: str) -> None:
    """Rank 0's wait of 52 ms is drawn as negotiation, and the legend says so; steps carry their numbers."""
    open_at(page, f"{slow_rank}/timeline?step=10")
    drawn = page.evaluate(
        """(() => { const t = window.tlkit.timeline, pane = t.panes[0], tile = pane.tile, found = {};
        for (let k = 0; k < tile.count; k++) { const row = tile.rows[tile.row[k]];
          if (t.rows.ranks[row] === 0 && t.rows.lanes[t.rows.lane[row]] === 'compute') { const name = t.rows.categories[tile.category[k]]; found[name] = (found[name] || 0) + tile.right[k] - tile.left[k]; } }
        return found; })()"""
    )
    assert max(drawn, key=lambda name: float(drawn[name])) == "negotiate"
    assert "negotiate" in page.locator("#timeline-legend").inner_text()
    until(page, "[...window.tlkit.timeline.panes[0].names.values()].includes('STEP 10')")


def test_the_axis_is_precise_at_a_microsecond(page: Page, slow_rank: str) -> None:
    """Labels differ from each other, and a week has labels as well."""
    open_at(page, f"{slow_rank}/timeline?from=1500000000&to=1500001000")
    low, high = map(int, painted(page).split(":"))
    assert high - low <= 1002
    for stretch in ((1_500_000_000, 1_500_001_000), (0, 7 * 86_400 * 10**9), (0, 3 * 10**9)):
        labels = page.evaluate(
            "async ([low, high]) => (await import('/assets/timeline/units.mjs')).ticks(low, high, 1000).ticks.map(tick => tick[1])",
            list(stretch),
        )
        assert len(labels) >= 4
        assert len(set(labels)) == len(labels)


def test_rows_are_folded_filtered_pinned_and_opened(page: Page, slow_rank: str) -> None:
    """Tensors are closed until somebody opens them; a filter leaves what it names; a pinned rank comes first and stays."""
    open_at(page, f"{slow_rank}/timeline")
    shown = "window.tlkit.timeline.panes[0].layout.items.map(item => [item.rank, item.type, item.label, item.isPinned])"
    assert not [item for item in page.evaluate(shown) if item[2].startswith("allreduce.")]
    page.locator("#timeline-filter").fill("stem.weight")
    until(page, "window.tlkit.timeline.panes[0].layout.items.length <= 4")
    assert {item[2] for item in page.evaluate(shown) if item[2]} == {"allreduce.stem.weight", "broadcast.stem.weight"}
    page.locator("#timeline-filter").fill("")
    page.evaluate("window.tlkit.timeline.pin(1)")
    assert page.evaluate(shown)[0][0] == 1
    assert page.evaluate(shown)[0][3]
    page.locator("#timeline-collapse").click()
    until(page, "window.tlkit.timeline.panes[0].layout.items.length === 2")
    assert [item[2] for item in page.evaluate(shown)] == ["compute", "compute"]


def test_counters_are_tracks(page: Page, slow_rank: str) -> None:
    """A click opens those of a rank: each has its values on the screen, between its lowest and highest; a link opens them, too."""
    open_at(page, f"{slow_rank}/timeline")
    where = page.evaluate(
        """(() => { const pane = window.tlkit.timeline.panes[0];
        return pane.y(pane.layout.items.find(item => item.type === 'group' && item.label.includes('counters'))); })()"""
    )
    page.locator("#timeline").click(position={"x": 130, "y": where + 8})
    until(page, "Object.keys(window.tlkit.timeline.panes[0].counters).length > 3")
    shown = page.evaluate(
        """(() => { const pane = window.tlkit.timeline.panes[0]; return pane.visible().filter(item => item.type === 'counter')
        .map(item => [item.label, pane.rows.counters[item.counter], pane.counters[item.counter] || []]); })()"""
    )
    assert "process memory" in " ".join(label for label, _, _ in shown)
    for _, counter, points in shown:
        assert points
        assert all(counter["low"] <= least <= most <= counter["high"] for _, least, most in points)
    page.wait_for_url("**open=counter*")
    open_at(page, page.url)
    until(page, "Object.keys(window.tlkit.timeline.panes[0].counters).length > 3")


def test_names_of_spans_and_lanes_stay_text(page: Page, tmp_path: Path) -> None:
    """Markup as a span's name, in its args and as a lane: in the table, the panels, the legend and the address."""
    evil = "<img src=x onerror=window.hacked=1>"
    meta = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": evil}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": evil}},
    ]
    spans = [
        {"ph": "X", "name": f"{evil}{k}", "pid": 0, "tid": 1, "ts": k * 1000, "dur": 900, "args": {evil: evil}}
        for k in range(20)
    ]
    (tmp_path / "t.json").write_text(json.dumps(meta + spans))
    process, url = serve(str(tmp_path / "t.json"))
    try:
        open_at(page, f"{url}timeline?q=onerror&show=%3Cb%3E&filter=%3Cb%3E&sort=%3Cb%3E&beside=%3Cb%3E")
        page.locator("#timeline-filter").fill("")
        page.locator("#timeline-spans tbody button").first.click()
        page.locator("#timeline-details h3").wait_for()
        press(page, "m")
        page.locator("#timeline-region h3").wait_for()
        page.wait_for_timeout(500)
        assert page.evaluate("window.hacked") is None
        assert page.locator("#page img").count() == 0
        assert evil in page.locator("#timeline-details").inner_text()
        page.goto("about:blank")
    finally:
        stop(process)


def test_names_that_are_too_long_are_told_by_what_matters(page: Page, slow_rank: str) -> None:
    """Brackets behind a name go first, then its middle; of a few characters it is the beginning, unless a number counts."""
    page.goto(f"{slow_rank}/timeline")
    page.wait_for_selector("#timeline[data-painted]")
    found = page.evaluate("""async () => {
      const { fitted } = await import("/assets/timeline/colours.mjs"), g = { font: "x", measureText: text => ({ width: text.length }) };
      const asked = [["forward", 9], ["thread 4037 (python3.8)", 12], ["ncclKernel_AllReduce(ncclWork*)", 6], ["a_long_name_of_it", 12], ["ProfilerStep#552", 7],
        ["abcdef", 2], ["(all of it)", 8]];
      return asked.map(([text, wide]) => fitted(g, text, wide));
    }""")

    assert found == ["forward", "thread 4037", "ncclK…", "a_long…of_it", "Pro…552", "", "(all of…"]
