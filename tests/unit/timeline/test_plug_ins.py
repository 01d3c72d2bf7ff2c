"""Readers of other packages: what is wrong with them is one line, not a traceback."""

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tlkit.timeline import formats
from tlkit.timeline.commands.trace import main


def refuse(*_: Any) -> Any:
    message = "no such thing\nand more lines"
    raise KeyError(message)


class Whole:
    """A reader that other packages may bring as a class."""

    NAME = "whole"

    def sniff(self, head: bytes) -> bool:
        return bool(refuse(head))

    def read(self, sources: Any, progress: Any) -> Any:
        return refuse(sources, progress)


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Makes an object a reader of another package."""

    def brought(reader: Any) -> None:
        class Point:
            name, value = "theirs", "package:reader"

            def load(self) -> Any:
                return reader() if reader is refuse else reader

        monkeypatch.setattr(formats, "entry_points", lambda group: [Point()] if group == formats.GROUP else [])
        formats.known_formats.cache_clear()

    yield brought
    formats.known_formats.cache_clear()


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (refuse, "tl-trace: the reader theirs (package:reader) cannot be loaded: KeyError"),
        (
            SimpleNamespace(NAME="half", sniff=lambda _: True),
            "tl-trace: the reader theirs (package:reader) is none: it has no read",
        ),
        (Whole, "the reader of `whole` cannot open it: KeyError"),
        (
            SimpleNamespace(NAME="late", sniff=lambda _: True, read=refuse),
            "the reader of `late` failed on it in test_plug_ins.py:",
        ),
    ],
    ids=["cannot be loaded", "lacks a function", "fails when it looks", "fails when it reads"],
)
def test_a_broken_reader_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bring: Callable[[Any], None], reader: Any, said: str
) -> None:
    """It names the reader, and exits with status 2."""
    bring(reader)
    (tmp_path / "t.json").write_text("anything")
    assert main(["info", str(tmp_path / "t.json")]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_an_entry_point_names_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module, as another package's metadata would name it."""
    point = EntryPoint("again", "tlkit.timeline.formats.chrome", formats.GROUP)
    monkeypatch.setattr(formats, "entry_points", lambda group: [point])
    formats.known_formats.cache_clear()
    assert formats.known_formats()[0].NAME == "chrome"
    formats.known_formats.cache_clear()
