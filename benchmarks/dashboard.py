"""How quickly the dashboard answers on a large trace, measured in Chromium.

    python benchmarks/dashboard.py FOLDER          # FOLDER as benchmarks/kineto_like.py makes it, a file a rank

Prints the time from the start of tl-dash (trace kept as Parquet) to the first screen, zoom and pan to paint, and the server's
memory.
"""

import argparse
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
from playwright.sync_api import sync_playwright

FLAGS = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync"),
]
SCROLL = "share => { const t = window.tlkit.timeline; t.first = share * Math.max(t.total - t.height, 0); }"

#: Zooms to a stretch and resolves with the milliseconds until it is painted from the server's answer.
ZOOM = """async ([low, high]) => {
  const timeline = window.tlkit.timeline;
  while (timeline.busy) await new Promise(done => setTimeout(done, 1));
  const began = performance.now();
  timeline.low = low; timeline.high = high;
  await timeline.ask();
  await new Promise(done => requestAnimationFrame(done));
  return performance.now() - began;
}"""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="+")
    parser.add_argument("--views", type=int, default=200)
    arguments = parser.parse_args()
    tool = str(Path(sys.executable).parent / "tl-dash")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        began = time.perf_counter()
        process = subprocess.Popen([tool, *arguments.trace, "--port", "0"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        print(f"served after {time.perf_counter() - began:.2f} s")
        page.goto(found[0])
        page.wait_for_selector("#verdict-sentence", timeout=120_000)
        print(f"first screen after {time.perf_counter() - began:.2f} s")
        page.goto(f"{found[0]}timeline")
        page.wait_for_selector("#timeline[data-painted]", timeout=120_000)
        print(f"timeline after {time.perf_counter() - began:.2f} s")
        end = page.evaluate("window.tlkit.timeline.rows.end_ns")
        rows = page.evaluate("window.tlkit.timeline.rows.names.length")
        chance = random.Random(1)  # noqa: S311
        taken = []
        for _ in range(arguments.views):
            length = end / 2 ** chance.uniform(0, 14)
            low = chance.uniform(0, end - length)
            page.evaluate(SCROLL, chance.random())
            taken.append(page.evaluate(ZOOM, [low, low + length]))
        browser.close()
    memory = psutil.Process(process.pid).memory_info().rss
    process.terminate()
    p50, p95 = statistics.median(taken), statistics.quantiles(taken, n=20)[-1]
    print(f"{rows} rows; zoom and pan to paint: p50 {p50:.0f} ms, p95 {p95:.0f} ms, longest {max(taken):.0f} ms")
    print(f"memory of the server: {memory / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
