"""The dashboard, in a real browser."""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.attack.harness import TOKEN, collecting, start_push
from tests.attack.harness import wait_for as until
from tlkit.timeline import open_trace
from tlkit.timeline.record.flight import RECORDING, WHY

from .browser import LONG_MS, needs_chromium
from .ranks import REPOSITORY, finish_ranks, run_script, start_ranks

PAGES = ("verdict", "steps", "ranks", "communication", "data", "devices", "timeline", "compare")

pytestmark = needs_chromium


STEPS = 30


@pytest.fixture(scope="module")
def timelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of two ranks: in `t.json` rank 1 sleeps 150 ms in each forward pass, in `before.json` none does."""
    folder = tmp_path_factory.mktemp("timelines")
    script = REPOSITORY / "benchmarks" / "diagnosis" / "train.py"
    for name, fault in (("t.json", "slow-forward:rank=1,ms=150"), ("before.json", "none")):
        arguments = ("--workers", "2", "--steps", str(STEPS), "--fault", fault)
        run_script(2, script, arguments, {"HOROVOD_TIMELINE": str(folder / name)})
    return folder


def serve(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A running tl-dash, and its address."""
    return answering([sys.executable, "-m", "tlkit.dashboard.cli", *arguments, "--port", "0"])


def answering(command: list[str]) -> tuple[subprocess.Popen[str], str]:
    """A command that serves, once it does, and its address."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    if found is None:
        process.kill()
        raise AssertionError(f"{line}{process.communicate()[1]}")
    return process, found[0]


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate(timeout=20)


@pytest.fixture(scope="module")
def address(timelines: Path) -> Iterator[str]:
    """A dashboard of a run with a slow rank, and one to compare with."""
    process, url = serve(str(timelines / "t.json"), "--compare", str(timelines / "before.json"))
    yield url.rstrip("/")
    stop(process)


def wait_for(page: Page, words: str, timeout_s: float = LONG_MS / 1000) -> None:
    page.get_by_text(words).first.wait_for(timeout=timeout_s * 1000)


def test_every_page_shows_what_it_is_for(page: Page, address: str) -> None:
    """In light and dark, without a complaint in the console."""
    expected = {
        "verdict": "longer than the other rank in every step, in forward",
        "steps": "How long steps take",
        "ranks": "Who waits for whom",
        "communication": "How communication does",
        "data": "How long the training waits",
        "devices": "forward cpu, ms",
        "timeline": "open in Perfetto",
        "compare": "Parts of the mean step, largest change first",
    }
    for name in PAGES:
        page.goto(f"{address}/{name}")
        wait_for(page, expected[name])
    page.goto(address)
    wait_for(page, expected["verdict"])
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme-switch").click()
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("3")
    wait_for(page, expected["ranks"])
    assert page.url.endswith("/ranks")
    # One key for all pages: the timeline has its own use for most of them.
    for name, wanted in (("timeline", "light"), ("steps", "dark")):
        page.goto(f"{address}/{name}")
        page.wait_for_selector("#timeline[data-painted]" if name == "timeline" else "#page [data-svg] svg")
        page.keyboard.press("d")
        page.keyboard.press("k")
        page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=wanted)


SLOW_RANK = REPOSITORY / "samples" / "traces" / "slow-rank"
#: A tl-dash that answers before it has opened a small run, and analyses it when a file is there.
HELD = """
import os, sys, time
from pathlib import Path
from tlkit.collector import kept
from tlkit.dashboard import cli
os.environ["TLKIT_CACHE_DIR"] = sys.argv[3]
cli.AT_ONCE_NBYTES, analyze_kept = 0, kept.analyze_kept
def held(*paths, on_trace, **options):
    def hold(trace):
        on_trace(trace)
        while not Path(sys.argv[2]).exists():
            time.sleep(0.05)
    return analyze_kept(*paths, on_trace=hold, **options)
kept.analyze_kept = held
sys.exit(cli.main([sys.argv[1], "--port", "0"]))
"""


def test_a_run_shows_what_is_known_while_it_is_opened(page: Page, browser: Browser, tmp_path: Path) -> None:
    """Then its pages come without a reload, each where somebody has gone meanwhile, and nothing is asked for any more."""
    gate = tmp_path / "gate"
    command = [sys.executable, "-c", HELD, str(SLOW_RANK), str(gate), ""]
    process, url = answering(command)
    second = browser.new_page()
    try:
        page.goto(url)
        second.goto(f"{url}timeline")
        for each in (page, second):
            wait_for(each, "Analysing for")
            # Its parts are replaced each second.
            each.locator("#page table").get_by_text("2 ranks on ").wait_for()
        gate.touch()
        wait_for(page, "longer than the other rank in every step, in forward")
        second.wait_for_selector("#timeline[data-painted]", timeout=LONG_MS)
        page.locator("header nav a").nth(4).wait_for()
        page.wait_for_function("['status', 'pulse'].every(id => document.getElementById(id).innerText === '')")
        assert is_quiet(page, 2500)
    finally:
        second.close()
        stop(process)


def is_quiet(page: Page, for_ms: int) -> bool:
    """Whether a page asks for nothing any more, once what is under way has ended."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(5):
        asked.clear()
        page.wait_for_timeout(for_ms)
        if not asked:
            return True
    return False


def test_every_page_says_which_run_it_is_about(page: Page, address: str) -> None:
    """In its header and in the tab; and in which language it is written."""
    for name, label in (("verdict", "Verdict"), ("timeline", "Timeline")):
        page.goto(f"{address}/{name}")
        page.wait_for_function("label => document.title.startsWith(label)", arg=label, timeout=LONG_MS)
        said = page.locator("#run").inner_text()
        assert re.fullmatch(
            r".*json.* · 2 ranks on .+ · \d{4}-\d\d-\d\d \d\d:\d\d UTC · .+ steps analysed · .+ events", said
        ), said
        assert said.split(" · ")[0] in page.title()
        assert page.evaluate("document.documentElement.lang") == "en"
        assert page.locator("h1").count() == 1


def asked_of(url: str) -> dict[str, str]:
    """What an address asks for: the timeline writes its own in another order than links to it have."""
    return dict(parse_qsl(urlsplit(url).query))


def painted_address(page: Page) -> str:
    """The address of the timeline once it has written into it what it shows."""
    painted(page)
    page.wait_for_url(re.compile(r"[?&]from=\d+"))
    return page.url


def test_the_straggler_is_two_clicks_away(page: Page, address: str) -> None:
    """From the first screen to the rank that the others wait for, and to its spans."""
    page.goto(address)
    page.get_by_text("Look closer").click()
    marked = page.locator("tr.marked")
    marked.wait_for()
    assert "rank 1" in marked.inner_text()
    page.goto(address)
    page.get_by_text("See it on the timeline").click()
    for asked in (asked_of(page.url), asked_of(painted_address(page))):
        assert asked["ranks"].split(",")[-1] == "1"
        assert asked["show"] == "forward"
        assert int(asked["step"]) > 0


def test_sliders_answer(page: Page, address: str) -> None:
    """Without stragglers half of the step goes, on a machine that is not busy otherwise."""
    page.goto(address)
    wait_for(page, "Move a slider")
    page.get_by_text("no stragglers").click()
    page.get_by_text(re.compile(r"[1-9]\d% less\.$")).last.wait_for()
    assert "A step would take" in page.locator("#what-if-answer").inner_text()


def test_a_live_page_goes_on_and_leaves_open_what_was_opened(page: Page, timelines: Path, tmp_path: Path) -> None:
    """The files of a run grow: more steps, and the evidence that somebody reads stays on the screen, until it is closed."""
    contents = {name: (timelines / name).read_bytes().splitlines(keepends=True) for name in ("t.json", "t.rank1.json")}

    def write(begin: float, end: float) -> None:
        for name, lines in contents.items():
            with (tmp_path / name).open("ab") as file:
                file.write(b"".join(lines[round(len(lines) * begin) : round(len(lines) * end)]))

    def steps() -> int:
        found = re.search(r"(\d+) steps", page.get_by_text(re.compile(r"\d+ steps, mean")).first.inner_text())
        return int(found[1]) if found else 0

    def wait_for_more_than(count: int) -> int:
        deadline = time.monotonic() + 20
        while (now := steps()) <= count and time.monotonic() < deadline:
            page.wait_for_timeout(100)
        assert now > count
        return now

    write(0, 0.5)
    process, url = serve(str(tmp_path / "t.json"), "--follow")
    try:
        page.goto(url)
        first = page.locator("details[data-key]").first
        first.locator("summary").click()
        first.locator("td").first.wait_for()
        seen = steps()
        write(0.5, 0.75)
        seen = wait_for_more_than(seen)
        page.wait_for_timeout(200)
        assert first.locator("td").first.is_visible()
        first.locator("summary").click()
        write(0.75, 1)
        wait_for_more_than(seen)
        page.wait_for_timeout(200)
        assert not first.locator("td").first.is_visible()
        # Nothing new comes: what is on the page is not made again, so that nothing of it closes or jumps.
        page.evaluate("document.querySelector('#page .card').dataset.mark = 'mine'")
        with page.expect_response(lambda response: "_dash-update-component" in response.url, timeout=LONG_MS):
            pass
        page.wait_for_timeout(2500)
        assert page.locator("#page [data-mark=mine]").count() == 1
    finally:
        page.goto("about:blank")  # it would ask a server that is gone
        stop(process)


def painted(page: Page) -> str:
    """What stretch the timeline has drawn, once it is drawn."""
    handle = page.wait_for_selector("#timeline[data-painted]", timeout=LONG_MS)
    assert handle is not None
    return handle.get_attribute("data-painted") or ""


def wait_until_painted(page: Page, other_than: str) -> str:
    deadline = time.monotonic() + LONG_MS / 1000
    while (now := painted(page)) == other_than and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    assert now != other_than
    return now


def settled(page: Page) -> str:
    """What stretch is drawn, once nothing has moved it for a while."""
    now, since = painted(page), time.monotonic()
    while time.monotonic() - since < 0.5:  # longer than what a click sets off takes
        page.wait_for_timeout(50)
        if (later := painted(page)) != now:
            now, since = later, time.monotonic()
    return now


def test_the_timeline_zooms_searches_and_tells(page: Page, address: str) -> None:
    """By wheel, key and search; a click names the span; the address restores the view."""
    page.goto(f"{address}/timeline")
    whole = painted(page)
    box = page.locator("#timeline").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 600, box["y"] + 100)
    page.mouse.wheel(0, -800)
    closer = wait_until_painted(page, whole)
    page.locator("#timeline").focus()
    page.keyboard.press("f")
    assert wait_until_painted(page, closer) == whole
    page.locator("#timeline-query").fill("optimizer_step")
    page.keyboard.press("Enter")
    wait_for(page, f"{2 * STEPS} matches")
    details = page.locator("#timeline-details")
    details.locator("h3", has_text="OPTIMIZER_STEP").wait_for(timeout=LONG_MS)
    first = details.inner_text()
    page.locator("#timeline-next").click()
    page.wait_for_function(
        "first => document.getElementById('timeline-details').innerText !== first", arg=first, timeout=LONG_MS
    )
    now = settled(page)
    page.mouse.move(box["x"] + 600, box["y"] + 100)
    page.mouse.wheel(0, -800)
    wait_until_painted(page, now)
    there = settled(page)
    low = int(there.split(":")[0])
    page.wait_for_function(
        "low => Math.abs(+new URLSearchParams(location.search).get('from') - low) <= 2", arg=low, timeout=LONG_MS
    )
    page.goto(page.url)
    again = painted(page)  # whole nanoseconds stand in the address
    assert all(abs(int(one) - int(other)) <= 2 for one, other in zip(again.split(":"), there.split(":"), strict=True))
    page.goto(f"{address}/timeline?step=7")
    assert 0 < length(painted(page)) < length(whole) / 4


def length(view: str) -> int:
    low, high = map(int, view.split(":"))
    return high - low


def test_a_view_is_downloaded_as_a_trace(page: Page, address: str) -> None:
    """What is on the screen, and nothing else."""
    page.goto(f"{address}/timeline?step=7")
    painted(page)
    with page.expect_download() as waiting:
        page.locator("#timeline-download").click()
    events = json.loads(Path(waiting.value.path()).read_text())
    spans = [
        event for event in (events["traceEvents"] if isinstance(events, dict) else events) if event.get("ph") == "X"
    ]
    assert 2 <= len([event for event in spans if event["name"] == "FORWARD"]) <= 6


def test_hostile_names_stay_text(page: Page, timelines: Path, tmp_path: Path) -> None:
    """Markup, a megabyte, right-to-left, NUL, as names of spans and tensors: on every page."""
    hostile = [
        "<script>window.hacked=1</script>",
        "<img src=x onerror=window.hacked=1>",
        "x" * 1_000_000,
        "\u202eabc\x00",
    ]
    for name in ("t.json", "t.rank1.json"):
        lines = (timelines / name).read_text().splitlines()
        changed = []
        for number, line in enumerate(lines):
            found = re.search(r'"name":"(allreduce\.|GLOO_)', line)
            if found and number % 7 == 0:
                event = json.loads(line.rstrip(","))
                event["name"] = hostile[number // 7 % len(hostile)] if number < 4000 else "<b>bold</b>"
                changed.append(json.dumps(event) + ",")
            else:
                changed.append(line)
        (tmp_path / name).write_text("\n".join(changed))
    process, url = serve(str(tmp_path / "t.json"))
    try:
        for name in PAGES:
            page.goto(f"{url}{name}")
            page.wait_for_timeout(700)
        page.goto(f"{url}timeline")
        painted(page)
        page.locator("#timeline-query").fill("<b>")
        page.keyboard.press("Enter")
        page.get_by_text(re.compile(r"\d+ matches")).wait_for()
        assert page.evaluate("window.hacked") is None
        assert page.locator("#timeline-details b").count() == 0
        page.wait_for_timeout(500)
        page.goto("about:blank")
    finally:
        stop(process)


def status_of(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_strangers_are_sent_away(address: str, timelines: Path) -> None:
    """Another name for this host, questions that make no sense, paths outside; and a token where the world could come."""
    assert status_of(f"{address}/verdict") == 200
    assert status_of(f"{address}/verdict", Host="evil.example") == 421
    assert status_of(f"{address}/data/view?low=0&high=5&rows=0") == 400
    assert status_of(f"{address}/data/view?low=5&high=5&columns=10&rows=0") == 400
    assert status_of(f"{address}/data/view?low=0&high=99&columns=1000000&rows=0") == 400
    assert status_of(f"{address}/data/view?low=0&high=99&columns=100&rows=0-999999999") == 400
    assert status_of(f"{address}/data/region?low=0&high=99&by=colour") == 400
    assert status_of(f"{address}/data/spans?order=colour") == 400
    assert status_of(f"{address}/data/rows?run=2") == 400
    assert status_of(f"{address}/data/span?number=999999999") == 404
    assert status_of(f"{address}/data/spans?q=/((((/") == 400
    assert status_of(f"{address}/assets/../cli.py") == 404
    process, url = serve(str(timelines / "t.json"), "--host", "0.0.0.0")
    try:
        base, _, token = url.partition("/?token=")
        base = base.replace("0.0.0.0", "127.0.0.1")
        assert len(token) > 20
        assert status_of(f"{base}/data/rows") == 401
        assert status_of(f"{base}/data/rows?token=wrong") == 401
        assert status_of(f"{base}/data/rows", Authorization=f"Bearer {token}") == 200
    finally:
        stop(process)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    """A missing file, a port that is taken."""
    command = [sys.executable, "-m", "tlkit.dashboard.cli"]
    ended = subprocess.run(
        [*command, str(tmp_path / "none.json")], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


def test_the_button_sets_aside_what_flight_recorders_have(page: Page, tmp_path: Path) -> None:
    """Of a job that runs: through the collector, the sender and the ranks; and the dashboard says what it did."""
    script = """
hvd.init()
model = torch.nn.Linear(200, 50)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
while hvd.allreduce(torch.tensor(float(os.path.exists(os.environ["ENOUGH"]))), name="enough") == 0:
    optimizer.zero_grad()
    model(torch.randn(8, 200)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
hvd.shutdown()
answer(0)
"""
    base, enough = tmp_path / "flight", tmp_path / "enough"
    base.mkdir()
    processes = start_ranks(2, script, {"HOROVOD_FLIGHT_RECORDER": str(base), "ENOUGH": str(enough)})
    helpers: list[subprocess.Popen[Any]] = []
    try:
        with collecting(tmp_path / "kept") as server:
            until((base / RECORDING).exists, "the ranks do not record")
            helpers.append(start_push(base / RECORDING, server.url, tmp_path / "push.log", "--run", "job"))
            token = tmp_path / "token"
            token.write_text(TOKEN)
            token.chmod(0o600)
            dashboard, url = serve("--collector", server.url, "--collector-token-file", str(token))
            helpers.append(dashboard)
            page.goto(url)
            page.wait_for_selector("#verdict-sentence", timeout=LONG_MS)
            page.get_by_role("button", name="set aside").click()
            wait_for(page, "asked (request")
            until((base / "001-request" / WHY).exists, page.locator("#dump-answer").inner_text())
            number = page.locator("#dump-answer").inner_text().split()[2].rstrip(");")
            why = json.loads((base / "001-request" / WHY).read_text())["why"]
            assert why == f"asked for in the dashboard (request {number})"
            page.goto("about:blank")  # the dashboard ends before its page does
    finally:
        for process in helpers:
            process.terminate()
            process.communicate(timeout=60)
        enough.touch()
        results = finish_ranks(processes)
    assert [result.answer for result in results] == [0, 0]
    assert open_trace(base / "001-request").meta.ranks == (0, 1)
