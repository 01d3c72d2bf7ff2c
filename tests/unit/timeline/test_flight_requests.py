"""Requests to a flight recorder: one rank hears each of them, once, and only those of the job's own user."""

import os
from pathlib import Path

import pytest

from tlkit.timeline.record.flight_requests import LISTENS, MAX_WHY, REQUEST, Requests, listens, request_dump


class Clock:
    """Seconds that go by when they are told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_one_rank_hears_a_request_once(tmp_path: Path) -> None:
    """Of two that look into the same folder; and it is heard within a second."""
    clock = Clock()
    ranks = [Requests(tmp_path, clock), Requests(tmp_path, clock)]
    assert listens(tmp_path)
    request_dump(tmp_path, "loss is nan")
    assert [rank.look() for rank in ranks] == ["", ""]
    clock.now_s = 1.0
    assert sorted(rank.look() for rank in ranks) == ["", "loss is nan"]
    clock.now_s = 2.0
    assert [rank.look() for rank in ranks] == ["", ""]


def test_what_is_asked_is_one_short_line(tmp_path: Path) -> None:
    """It goes into a log and a file."""
    clock = Clock()
    rank = Requests(tmp_path, clock)
    request_dump(tmp_path, "a\n\x1b[31mb" + "\ud800" + "x" * 1000)
    clock.now_s = 1.0
    why = rank.look()

    assert why.startswith("a  [31mb")
    assert why.isprintable()
    assert len(why) == MAX_WHY


def test_requests_of_an_earlier_run_are_forgotten(tmp_path: Path) -> None:
    """And a run that is over leaves nothing behind."""
    request_dump(tmp_path, "long ago")
    clock = Clock()
    rank = Requests(tmp_path, clock)
    clock.now_s = 1.0
    assert rank.look() == ""
    rank.stop()
    assert list(tmp_path.iterdir()) == []
    assert not listens(tmp_path)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file_is_no_request(tmp_path: Path, kind: str) -> None:
    """It is not followed, and nobody waits at it."""
    clock = Clock()
    rank = Requests(tmp_path, clock)
    path = tmp_path / REQUEST
    if kind == "link":
        (tmp_path / "secret").write_text("secret")
        path.symlink_to(tmp_path / "secret")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    clock.now_s = 1.0
    assert rank.look() == ""


def test_a_file_of_another_user_is_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write into the folder may not ask, unless he is the user of the job."""
    clock = Clock()
    rank = Requests(tmp_path, clock)
    (tmp_path / REQUEST).write_text("let me in")
    owner = (tmp_path / REQUEST).stat().st_uid
    if owner == 0:
        os.chown(tmp_path / REQUEST, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    clock.now_s = 1.0
    assert rank.look() == ""
    assert (tmp_path / LISTENS).exists()


def test_a_request_that_fails_leaves_nothing_and_hinders_no_other(tmp_path: Path) -> None:
    """Neither one that could not be put in its place, nor one whose writer died while it wrote."""
    (tmp_path / REQUEST).mkdir()
    with pytest.raises(OSError):
        request_dump(tmp_path, "no room for it")
    (tmp_path / REQUEST).rmdir()
    assert list(tmp_path.iterdir()) == []

    dead = tmp_path / f"{REQUEST}.{os.getpid()}"
    dead.write_text("half")
    request_dump(tmp_path, "loss is nan")
    assert (tmp_path / REQUEST).read_text() == "loss is nan"
    rank = Requests(tmp_path, Clock())
    assert [path.name for path in tmp_path.iterdir()] == [LISTENS]
    dead.write_text("half")
    rank.stop()
    assert list(tmp_path.iterdir()) == []
