"""What a second of a live page costs, in the browser and on the server.

    python benchmarks/dashboard_live.py samples/traces/slow-rank/t.json.gz

The shards of a recorded run are written once more, evenly over the time that is measured, while `tl-dash --follow` shows them in
Chromium.  For each page, while steps come and while none do: processor time of the browser's main thread (all of its tasks, and
its scripts alone) and of the server, requests, and bytes, per second.
"""

import argparse
import gzip
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from chromium import FLAGS
from playwright.sync_api import CDPSession, Page, sync_playwright

from tlkit.timeline.read.open import files_of

PAGES = ("verdict", "steps", "timeline")
#: Of the run that is there before anybody looks.
BEGUN = 0.3
#: By then a page that has been opened is quiet, and what came last has been shown.
SETTLE_S = 4.0


@dataclass(frozen=True)
class Spent:
    """Since the browser and the server began."""

    at_s: float
    tasks_s: float
    scripts_s: float
    server_s: float
    requests: int
    nbytes: int


class Meter:
    """Counts what a page asks for, and what it and the server spend."""

    def __init__(self, page: Page, server: psutil.Process) -> None:
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._server = server
        self._requests, self._nbytes = 0, 0
        self._session.send("Performance.enable")
        self._session.send("Network.enable")
        self._session.on("Network.loadingFinished", self._count)

    def _count(self, event: dict[str, float]) -> None:
        self._requests += 1
        self._nbytes += int(event["encodedDataLength"])

    def read(self) -> Spent:
        """What has been spent so far."""
        found = {item["name"]: item["value"] for item in self._session.send("Performance.getMetrics")["metrics"]}
        times = [each.cpu_times() for each in (self._server, *self._server.children(recursive=True))]
        return Spent(
            at_s=time.monotonic(),
            tasks_s=found["TaskDuration"],
            scripts_s=found["ScriptDuration"],
            server_s=sum(each.user + each.system for each in times),
            requests=self._requests,
            nbytes=self._nbytes,
        )


class Job:
    """Writes the shards of a run again."""

    def __init__(self, trace: str, folder: Path) -> None:
        self._shards: dict[Path, list[bytes]] = {}
        for path in files_of(trace):
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            self._shards[folder / path.name.removesuffix(".gz")] = content.splitlines(keepends=True)
        self._written = 0.0

    def write(self, until: float) -> None:
        """Have a share of the run in the files."""
        for path, lines in self._shards.items():
            with path.open("ab") as file:
                file.write(b"".join(lines[round(len(lines) * self._written) : round(len(lines) * until)]))
        self._written = until

    def go_on(self, until: float, seconds: float) -> threading.Thread:
        """Write evenly, on a thread, ten times a second."""
        begin, rounds = self._written, max(round(seconds * 10), 1)

        def work() -> None:
            for number in range(1, rounds + 1):
                time.sleep(seconds / rounds)
                self.write(begin + (until - begin) * number / rounds)

        thread = threading.Thread(target=work)
        thread.start()
        return thread


def describe(name: str, before: Spent, after: Spent) -> str:
    """A line of the table: milliseconds, requests and bytes a second."""
    seconds = after.at_s - before.at_s
    return (
        f"{name}: browser {(after.tasks_s - before.tasks_s) / seconds * 1e3:.1f} ms "
        f"(scripts {(after.scripts_s - before.scripts_s) / seconds * 1e3:.1f} ms), "
        f"server {(after.server_s - before.server_s) / seconds * 1e3:.0f} ms, "
        f"{(after.requests - before.requests) / seconds:.1f} requests, "
        f"{(after.nbytes - before.nbytes) / seconds / 1e3:.1f} kB a second"
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each page, growing and still (default 10)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as base, sync_playwright() as playwright:
        job = Job(arguments.trace, Path(base))
        job.write(BEGUN)
        command = [sys.executable, "-m", "tlkit.dashboard.cli", f"{base}/t.json", "--follow", "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            page.goto(found[0])
            page.wait_for_selector("#verdict-sentence", timeout=120_000)
            meter = Meter(page, psutil.Process(process.pid))
            for number, name in enumerate(PAGES, start=1):
                page.goto(f"{found[0]}{name}")
                page.wait_for_timeout(SETTLE_S * 1e3)
                before = meter.read()
                thread = job.go_on(BEGUN + (1 - BEGUN) * number / len(PAGES), arguments.seconds)
                page.wait_for_timeout(arguments.seconds * 1e3)
                print(describe(f"{name}, steps come", before, meter.read()))
                thread.join()
                page.wait_for_timeout(SETTLE_S * 1e3)
                before = meter.read()
                page.wait_for_timeout(arguments.seconds * 1e3)
                print(describe(f"{name}, none come", before, meter.read()), flush=True)
            browser.close()
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
