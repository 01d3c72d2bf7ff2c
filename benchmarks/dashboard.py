"""How quickly the dashboard answers on a large trace, measured in Chromium.

    python benchmarks/dashboard.py FOLDER          # FOLDER as benchmarks/kineto_like.py makes it, a file a rank
    python benchmarks/dashboard.py FOLDER --fresh  # with an empty cache: nothing of the run is kept
    python benchmarks/dashboard.py FOLDER --read   # the columns are kept and nothing else, as after an update of the toolkit

Prints the time from the start of tl-dash to the page that says what is known of the run and to the first screen (the
same page where that was kept), from there to the timeline, zoom and pan to paint, what searches, sums of regions and pages of the
table of spans take, and the server's memory beside that of the columns.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import psutil
from chromium import FLAGS
from playwright.sync_api import Page, sync_playwright

#: Of a span in the trace's table: rank, lane, kind, category, name, start, duration, place of its args.
COLUMN_NBYTES = 4 + 2 + 1 + 1 + 2 + 8 + 8 + 8
#: What questions needed for a moment is given back when nobody has asked for two seconds.
IDLE_S = 5
#: Answers of the server, in milliseconds, as the page sees them; the first of each kind prepares something.
ASK = """async address => {
  const began = performance.now();
  const answer = await fetch(address);
  const found = await answer.json();
  return [performance.now() - began, found.count ?? found.groups?.length ?? 0];
}"""
READ = "import sys; from tlkit.timeline import open_trace; open_trace(sys.argv[1:])"
SCROLL = "share => { const pane = window.tlkit.timeline.panes[0]; pane.scrollTo(share * Math.max(pane.room, 0)); }"

#: Zooms to a stretch and resolves with the milliseconds until it is painted from the server's answer.
ZOOM = """async ([low, high]) => {
  const timeline = window.tlkit.timeline;
  while (timeline.busy) await new Promise(done => setTimeout(done, 1));
  const began = performance.now();
  timeline.view.show(low, high);
  await timeline.ask();
  await new Promise(done => requestAnimationFrame(done));
  return performance.now() - began;
}"""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="+")
    parser.add_argument("--views", type=int, default=200)
    parser.add_argument("--fresh", action="store_true", help="with an empty cache: the server has the files read")
    parser.add_argument("--read", action="store_true", help="with the columns in the cache, and no analysis or screen")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if arguments.fresh or arguments.read:
            # Beside the user's own, whose analyses stay.
            os.environ["TLKIT_CACHE_DIR"] = stack.enter_context(tempfile.TemporaryDirectory())
        if arguments.read:
            # By another process, whose memory nobody measures.
            subprocess.run([sys.executable, "-c", READ, *arguments.trace], check=True)
        measure(arguments.trace, arguments.views)


def measure(trace: list[str], views: int) -> None:
    """Serve a trace, ask and print."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        began = time.perf_counter()
        command = [sys.executable, "-m", "tlkit.dashboard.cli", *trace, "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        print(f"served after {time.perf_counter() - began:.2f} s")
        page.goto(found[0])
        page.wait_for_selector("#page > *", timeout=120_000)
        print(f"what is known of the run after {time.perf_counter() - began:.2f} s")
        page.wait_for_selector("#verdict-sentence", timeout=120_000)
        spent = psutil.Process(process.pid).cpu_times()
        print(
            f"first screen after {time.perf_counter() - began:.2f} s; "
            f"processor time of the server until then: {spent.user + spent.system:.2f} s; "
            f"memory {describe_memory(memory_of(psutil.Process(process.pid)))}"
        )
        page.goto(f"{found[0]}timeline")
        page.wait_for_selector("#timeline[data-painted]", timeout=120_000)
        print(f"timeline after {time.perf_counter() - began:.2f} s")
        end = page.evaluate("window.tlkit.timeline.rows.end_ns")
        rows = page.evaluate("window.tlkit.timeline.rows.lane.length")
        spans = page.evaluate("window.tlkit.timeline.rows.spans")
        chance = random.Random(1)  # noqa: S311
        taken = []
        for _ in range(views):
            length = end / 2 ** chance.uniform(0, 14)
            low = chance.uniform(0, end - length)
            page.evaluate(SCROLL, chance.random())
            taken.append(page.evaluate(ZOOM, [low, low + length]))
        questions = ask_all(page, end, chance)
        browser.close()
    server = psutil.Process(process.pid)
    memory = memory_of(server)
    time.sleep(IDLE_S)
    idle_memory = memory_of(server)
    process.terminate()
    p50, p95 = statistics.median(taken), statistics.quantiles(taken, n=20)[-1]
    print(f"{rows} rows; zoom and pan to paint: p50 {p50:.0f} ms, p95 {p95:.0f} ms, longest {max(taken):.0f} ms")
    for name, times in questions.items():
        later = times[1:]
        print(
            f"{name}: first {times[0]:.0f} ms, then median {statistics.median(later):.0f}, longest {max(later):.0f} ms"
        )
    columns = spans * COLUMN_NBYTES
    print(
        f"memory of the server: {describe_memory(memory)} after the last question, "
        f"{describe_memory(idle_memory)} {IDLE_S} s later; "
        f"the columns of {spans:,} spans are {columns / 1e6:.0f} MB"
    )


def memory_of(process: psutil.Process) -> tuple[int, int]:
    """Bytes in memory of a process and its children, and how many of them are mapped files, which the system can take back.

    Pages that several of them have count once (PSS).
    """
    maps = [each for one in (process, *process.children(recursive=True)) for each in one.memory_maps()]
    nbytes = sum(each.pss for each in maps)
    return nbytes, nbytes - sum(each.anonymous for each in maps)


def describe_memory(found: tuple[int, int]) -> str:
    """Both, in MB."""
    return f"{found[0] / 1e6:.0f} MB ({found[1] / 1e6:.0f} of it mapped files)"


def ask_all(page: Page, end: int, chance: random.Random) -> dict[str, list[float]]:
    """Milliseconds of several questions of each kind, none of them asked before."""
    stretches = [(chance.uniform(0, 0.4) * end, chance.uniform(0.6, 1) * end) for _ in range(6)]
    addresses = {
        "search by name": [
            f"/data/spans?q={word}&limit=500"
            for word in ("AllReduce", "gemm", "aten::add", "linear", "norm", "softmax")
        ],
        "search, regular expression": [
            f"/data/spans?q=/{word}.*/&limit=500" for word in ("nccl", "aten", "split", "vec", "soft", "amp")
        ],
        "search in args, a part": [f"/data/args?q=nothing{number}" for number in range(6)],
        "region, the whole run": [f"/data/region?low={number}&high={end - number}" for number in range(6)],
        "region, a part": [f"/data/region?low={low:.0f}&high={high:.0f}" for low, high in stretches],
        "table, longest first": [f"/data/spans?order=duration&descending=1&rank={rank}" for rank in range(6)],
        "table, a step by exposed time": [
            f"/data/spans?order=exposed&descending=1&step={step}" for step in range(1, 7)
        ],
    }
    return {name: [page.evaluate(ASK, address)[0] for address in asked] for name, asked in addresses.items()}


if __name__ == "__main__":
    main()
