"""A run that is being opened: what its page says meanwhile, and that the finished page comes by itself."""

import re
import threading
from pathlib import Path

import pytest

from tlkit.collector.analysis import Analysis
from tlkit.collector.kept import analyze_kept
from tlkit.dashboard import cli
from tlkit.dashboard import source as source_module
from tlkit.dashboard.app import create_app, first_screen, page, pages_of
from tlkit.dashboard.opening import Opening
from tlkit.dashboard.run_header import describe_trace
from tlkit.dashboard.source import Source
from tlkit.timeline.errors import TraceError
from tlkit.timeline.model.trace import Trace
from tlkit.timeline.read.open import files_of

SAMPLE = Path(__file__).parents[3] / "samples" / "traces" / "slow-rank"


def shown(source: Source, name: str = "verdict") -> str:
    return re.sub(r"\s+", " ", str(page(source, name, "", "light")))


def test_it_says_what_is_known_and_ends_in_the_pages() -> None:
    """Files and their size first, how much has been read, then what the trace holds, then the verdict."""
    is_read, goes_on = threading.Event(), threading.Event()
    opening = Opening(files_of(SAMPLE))
    source = Source(None, opening=opening)
    assert pages_of(source) == ("verdict", "timeline")
    assert "children='files'" in shown(source, "steps")
    assert source.is_growing
    opening.update(3_000_000_000, 4_000_000_000)
    assert "Reading: 3.00 GB of 4.00 GB" in shown(source)
    assert source.status == "reading"
    opening.update(3_500_000_000, 4_000_000_000)
    assert source.status == "reading", "a live region that is said each second"

    def hold(trace: Trace) -> None:
        opening.analysing(describe_trace(trace))
        is_read.set()
        assert goes_on.wait(60)

    opened = threading.Event()

    def replace(analysis: Analysis) -> None:
        source.replace(analysis)
        opened.set()

    opening.start(lambda: analyze_kept(SAMPLE, on_trace=hold), replace)
    assert is_read.wait(60)
    assert "Analysing for" in shown(source)
    assert "2 ranks on " in shown(source)
    before = source.version
    goes_on.set()
    assert opened.wait(60)

    assert source.version != before
    assert not source.is_growing
    assert source.status == ""
    assert "in forward" in shown(source)
    assert set(pages_of(source)) > {"verdict", "steps", "ranks"}
    opening.check()


def test_a_run_that_cannot_be_opened_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its status and one line, as before the server had answered."""
    monkeypatch.setattr(cli, "AT_ONCE_NBYTES", 0)
    path = tmp_path / "t.json"
    path.write_bytes(b'[\n{"name": "x", "ph": "X", "ts": 1, "dur"\n')
    with pytest.raises(TraceError) as error:
        analyze_kept(path)

    assert cli.main([str(path), "--port", "0"]) == 2
    assert " ".join(str(error.value).split()) in capsys.readouterr().err


def test_who_stops_the_command_does_not_wait_for_the_files() -> None:
    """The reading ends at its next report, and that is no failure."""
    is_reading = threading.Event()
    opening = Opening()

    def read() -> Analysis:
        while True:
            opening.update(1, 2)
            is_reading.set()

    opening.start(read, lambda _: None)
    assert is_reading.wait(60)
    opening.give_up()

    assert opening.is_over.wait(60)
    opening.check()


@pytest.mark.parametrize("ask", ["first screen", "another page", "data", "stop"])
def test_a_run_whose_first_screen_was_kept_is_opened_behind_it(ask: str) -> None:
    """Not before it has been sent; whoever wants more waits for the run, and whoever stops the command for nothing."""
    began, analysis = threading.Event(), analyze_kept(SAMPLE)
    opening = Opening()
    source = Source(None, opening=opening, first=first_screen(Source(analysis)))

    def read() -> Analysis:
        began.set()
        opening.update(1, 1)
        return analysis

    opening.start(read, source.replace, patience_s=3600)
    assert not began.is_set()
    if ask == "first screen":
        assert "in forward" in shown(source)
        assert began.wait(60)
    elif ask == "another page":
        source.wait()
        assert "Every step, by part" in shown(source, "steps")
    elif ask == "data":
        assert source.run().analysis.facts.ranks == (0, 1)
    else:
        opening.give_up()
    opening.wait(60)

    assert (source.analysis is None) == (ask == "stop")
    opening.check()


def test_the_timeline_is_there_before_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page waits for nothing; what its script asks for does, and says so when that takes too long."""
    monkeypatch.setattr(source_module, "WAIT_S", 0.0)
    goes_on, analysis = threading.Event(), analyze_kept(SAMPLE)
    opening = Opening()
    source = Source(None, opening=opening, first=first_screen(Source(analysis)))
    client = create_app(source).server.test_client()

    def read() -> Analysis:
        assert goes_on.wait(60)
        return analysis

    opening.start(read, source.replace, patience_s=3600)
    made = shown(source, "timeline")
    early = client.get("/data/rows")
    goes_on.set()
    opening.wait(60)

    assert "timeline-legend" in made
    assert early.status_code == 202
    assert "being opened" in early.get_json()["error"]
    assert shown(source, "timeline") == made
    assert client.get("/data/rows").status_code == 200
    opening.check()
