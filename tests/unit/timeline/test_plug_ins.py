"""Readers of other packages: what is wrong with them is one line, not a traceback."""

import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, MetadataPathFinder, entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tlkit.timeline import formats
from tlkit.timeline.commands.trace import main
from tlkit.timeline.formats import plug_ins


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
        monkeypatch.setattr(formats, "may_have_plug_ins", lambda group: group == formats.GROUP)
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
    monkeypatch.setattr(formats, "may_have_plug_ins", lambda group: group == formats.GROUP)
    formats.known_formats.cache_clear()
    assert formats.known_formats()[0].NAME == "chrome"
    formats.known_formats.cache_clear()


def test_packages_are_found_as_the_library_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In folders that are there; where packages may lie elsewhere, nothing is ruled out."""
    finders = [finder for finder in sys.meta_path if not hasattr(finder, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", [*finders, PathFinder])
    # The package importlib_metadata, once somebody has imported it, has taken that away.
    monkeypatch.setattr(PathFinder, "find_distributions", MetadataPathFinder.find_distributions, raising=False)
    package = tmp_path / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: theirs\nVersion: 1.0\n")
    (tmp_path / "a_module.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing")])
    without = plug_ins.may_have_plug_ins(formats.GROUP)
    (package / "entry_points.txt").write_text(f"[{formats.GROUP}]\ntheirs = theirs:reader\n")

    assert not without
    assert plug_ins.may_have_plug_ins(formats.GROUP)
    assert [point.name for point in entry_points(group=formats.GROUP)] == ["theirs"]
    assert not plug_ins.may_have_plug_ins("another.group")
    for path in (tmp_path / "a_module.py", tmp_path / "x.egg"):
        (tmp_path / "x.egg").mkdir(exist_ok=True)
        monkeypatch.setattr(sys, "path", [str(path)])
        assert plug_ins.may_have_plug_ins("another.group")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_distributions=None)])
    assert plug_ins.may_have_plug_ins("another.group")
