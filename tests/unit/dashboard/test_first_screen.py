"""First screens that are kept: the same as the page would be, and none where anything that it depends on is another."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tlkit.collector.analysis import Analysis, analyze
from tlkit.dashboard import first_screen
from tlkit.dashboard.app import create_app, page, pages_of
from tlkit.dashboard.app import first_screen as made_of
from tlkit.dashboard.blocks import as_sent, changed, describe
from tlkit.dashboard.first_screen import FirstScreen, KeptScreen
from tlkit.dashboard.opening import Opening
from tlkit.dashboard.other_runs import OtherRuns
from tlkit.dashboard.source import Source
from tlkit.timeline import open_trace
from tlkit.timeline.read import cache_entries
from tlkit.timeline.read.families import possible_files
from tlkit.timeline.record.flight import WHY

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


@pytest.fixture(scope="module")
def slow() -> Analysis:
    return analyze(SAMPLES / "slow-rank")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks; nothing is kept, and that files were written just now does not matter."""
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(first_screen, "_RACY_NS", 0)
    return Path(shutil.copytree(SAMPLES / "slow-optimizer", tmp_path / "run"))


def place(run: Path | str, ranks: list[int] | None = None, warm_up: int | None = None) -> KeptScreen:
    return KeptScreen([str(run)], ranks=ranks, warm_up=warm_up)


def keep(run: Path | str) -> FirstScreen:
    """Open a run, and keep what its first screen shows."""
    analysis = analyze(run)
    screen = made_of(Source(analysis))
    place(run).store(screen, analysis)
    return screen


def test_what_is_kept_is_what_the_page_sends(run: Path) -> None:
    """Header, navigation and every part of the page, in both themes."""
    keep(run)
    found = place(run).load()
    source = Source(analyze(run))

    assert found is not None
    assert found.pages == pages_of(source)
    assert "2 ranks" in found.run
    for theme in ("light", "dark"):
        made = page(source, "verdict", "", theme)
        assert found.blocks[theme] == as_sent(made)
        # By which the browser is sent nothing when the run has been opened.
        assert changed(describe("verdict", found.blocks[theme]), "verdict", made) == {}


def test_it_is_shown_until_the_run_has_been_opened(slow: Analysis) -> None:
    """Other pages are the opening's; a run to compare with has its page, whatever there was when the screen was kept."""
    screen = replace(made_of(Source(slow)), run="the header")
    others = OtherRuns([str(SAMPLES / "healthy")], None)
    source = Source(None, others=others, opening=Opening(), first=screen)
    made = page(source, "verdict", "", "dark")
    layout = create_app(source).server.test_client().get("/_dash-layout").get_data(as_text=True)

    assert made == screen.blocks["dark"]
    assert "Opening" in str(page(source, "steps", "", "light"))
    assert pages_of(source) == (*screen.pages, "compare")
    assert "the header" in layout
    assert "to-ranks" in layout
    assert source.is_growing

    source.replace(slow)

    assert source.first is None
    assert not source.is_growing
    assert as_sent(page(source, "verdict", "", "dark")) == made
    assert pages_of(source) == (*screen.pages, "compare")


def test_what_was_not_right_is_sent_again(slow: Analysis) -> None:
    """A part that the opened run has otherwise replaces what was kept, and no other does."""
    screen = made_of(Source(slow))
    wrong = [*screen.blocks["light"]]
    wrong[1] = {"type": "P", "namespace": "dash_html_components", "props": {"children": "something else"}}
    news = changed(describe("verdict", wrong), "verdict", page(Source(slow), "verdict", "", "light"))

    assert news is not None
    assert len(news) == 1
    assert "in forward" in str(*news.values())


def grow(run: Path) -> None:
    with (run / "t.rank1.json.gz").open("ab") as file:
        file.write(b"\0")


def set_back(run: Path) -> None:
    """Other content of the same size, and the date as it was."""
    path = run / "t.rank1.json.gz"
    found = path.stat()
    path.write_bytes(bytes(found.st_size))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        grow,
        set_back,
        lambda run: (run / "t.rank1.json.gz").unlink(),
        lambda run: (run / "t.rank2.json.gz").write_bytes((run / "t.rank1.json.gz").read_bytes()),
        lambda run: (run / WHY).write_text('{"why": "a hang"}'),
    ],
    ids=["grown", "set-back", "gone", "another-rank", "set-aside"],
)
@pytest.mark.parametrize("named", ["folder", "file", "pattern"])
def test_another_run_has_none(run: Path, change: Callable[[Path], object], named: str) -> None:
    """However it was named, as soon as any of its files is another."""
    given = {"folder": str(run), "file": str(run / "t.json.gz"), "pattern": str(run / "t*.json.gz")}[named]
    keep(given)
    assert place(given).load() is not None
    change(run)

    assert place(given).load() is None


def test_a_selection_has_its_own(run: Path) -> None:
    keep(run)

    assert place(run, ranks=[1]).load() is None
    assert place(run, warm_up=3).load() is None
    assert place(run / "t.json.gz").load() is None
    assert place(run).load() is not None


def test_what_draws_it_may_be_another(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own code, and readers and rules of other packages, of which nobody here knows when they change."""
    keep(run)
    with monkeypatch.context() as patch:
        patch.setattr(first_screen, "_code", lambda: "another")
        assert place(run).load() is None
    with monkeypatch.context() as patch:
        patch.setattr(first_screen, "entry_points", lambda group: [group])
        assert place(run).load() is None

    assert place(run).load() is not None


def kept_file(run: Path) -> Path:
    (path,) = (run.parent / "cache").glob("*/*.screen")
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content.replace(b"rank", b"RANK"),
        lambda _: b"",
        lambda _: b"{}",
        lambda content: b"x" * len(content),
    ],
    ids=["cut", "changed", "empty", "foreign", "noise"],
)
def test_a_damaged_one_is_none(run: Path, damage: Callable[[bytes], bytes]) -> None:
    keep(run)
    path = kept_file(run)
    path.write_bytes(damage(path.read_bytes()))

    assert place(run).load() is None


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{}",
        b'{"run": 1, "pages": [], "files": [], "blocks": {"light": [], "dark": []}}',
        b'{"run": "", "pages": [1], "files": [], "blocks": {"light": [], "dark": []}}',
        b'{"run": "", "pages": [], "files": "x", "blocks": {"light": [], "dark": []}}',
        b'{"run": "", "pages": [], "files": [], "blocks": {"light": []}}',
        b'{"run": "", "pages": [], "files": [], "blocks": {"light": [], "dark": {}}}',
        b"[" * 100_000,
    ],
)
def test_of_another_shape_it_is_none(run: Path, content: bytes) -> None:
    """Even under its name and with the right checksum."""
    keep(run)
    path = kept_file(run)
    cache_entries.add_screen(run.parent / "cache", path.name.partition(".")[0], content)

    assert place(run).load() is None


def test_nothing_is_read_through_a_link(run: Path) -> None:
    """Or from a folder that the cache has not made."""
    keep(run)
    path = kept_file(run)
    elsewhere = path.rename(run.parent / "elsewhere")
    path.symlink_to(elsewhere)
    assert place(run).load() is None
    path.unlink()
    elsewhere.rename(path)
    assert place(run).load() is not None
    (path.parent / cache_entries.MARK).unlink()

    assert place(run).load() is None


def test_some_are_not_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that goes on, of one that has changed since, of files that its name does not say, and without a cache."""
    analysis = analyze(run)
    screen = made_of(Source(analysis))
    going = replace(analysis, condition=replace(analysis.condition, ending="running"))
    place(run).store(screen, going)
    early = place(run)
    place(run).store(replace(screen, files=(*screen.files, "/elsewhere")), analysis)
    grow(run)
    early.store(screen, analysis)
    with monkeypatch.context() as patch:
        patch.setattr(first_screen, "_RACY_NS", 10**18)
        place(run).store(screen, analysis)
    assert not list(run.parent.glob("cache/*/*.screen"))
    monkeypatch.setenv("TLKIT_CACHE_DIR", "")
    place(run).store(screen, analysis)

    assert place(run).load() is None


def test_a_full_disk_is_no_trouble(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TLKIT_CACHE_DIR", "/proc/nowhere")
    keep(run)

    assert place(run).load() is None
    assert "not kept" in caplog.text


def test_the_newest_stay_and_the_cache_can_remove_them(tmp_path: Path) -> None:
    for number in range(40):
        cache_entries.add_screen(tmp_path, f"{number:040x}", b"x")
        path = tmp_path / cache_entries._SCREENS / f"{number:040x}.screen"
        os.utime(path, ns=(number, number))
    left = sorted(int(path.stem, 16) for path in tmp_path.glob("*/*.screen"))
    assert left == list(range(8, 40))
    cache_entries.forget_oldest(tmp_path, "", 0, time.time())

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())[::4])
def test_names_say_at_least_what_is_read(name: str) -> None:
    """Of folders and of files, whatever they hold."""
    first = min(path for path in (SAMPLES / name).iterdir() if path.is_file() and not path.name.startswith("."))
    for given in (SAMPLES / name, first):
        files = possible_files([str(given)])

        assert files is not None
        assert set(open_trace(given).meta.files) <= set(map(str, files))


def test_what_lies_elsewhere_is_not_known(tmp_path: Path) -> None:
    assert possible_files(["s3://bucket/t.json"]) is None
    assert possible_files([str(tmp_path / "nothing.json")]) is None
    assert possible_files([str(tmp_path)]) is None
    assert first_screen._BESIDE == WHY


def test_it_waits_for_no_table(run: Path) -> None:
    """What shows a kept screen loads none of the packages that take longest, and not the analyser."""
    keep(run)
    code = (
        "import sys\n"
        "from tlkit.dashboard import cli\n"
        "from tlkit.collector.service import serving\n"
        "stack = cli.contextlib.ExitStack()\n"
        "stack.enter_context(cli._no_notebook())\n"
        "from tlkit.dashboard.first_screen import KeptScreen\n"
        "from tlkit.dashboard.opening import Opening\n"
        "from tlkit.dashboard.source import Source\n"
        "screen = KeptScreen([sys.argv[1]], ranks=None, warm_up=None).load()\n"
        "client = cli._load_application()(Source(None, opening=Opening(), first=screen)).server.test_client()\n"
        "assert client.get('/_dash-layout', headers={'Accept-Encoding': 'br, gzip'}).status_code == 200\n"
        "slow = ('numpy', 'pandas', 'pyarrow', 'IPython', 'tlkit.collector.analysis', 'tlkit.timeline.read.open')\n"
        "print(screen is not None, [name for name in slow if sys.modules.get(name)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False)

    assert done.stdout == "True []\n", done.stderr
