"""How what the ranks print is cut into lines."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.runtime.launch import output
from tlkit.runtime.launch.output import LinePrefixer, RankStream, Sink


def prefixed(chunks: list[bytes]) -> bytes:
    """All that comes out when `chunks` arrive one after the other."""
    lines = LinePrefixer(lambda: b"[0]:")
    return b"".join(lines.feed(chunk) for chunk in chunks if chunk) + lines.finish()


@pytest.mark.parametrize(
    ("arrived", "expected"),
    [
        ([b"one\ntwo\n"], b"[0]:one\n[0]:two\n"),
        ([b"\n\n"], b"[0]:\n[0]:\n"),
        ([b"10%\r20%\r"], b"[0]:10%\r[0]:20%\r"),
        ([b"dos\r", b"\nnext\n"], b"[0]:dos\r\n[0]:next\n"),
        ([b"a\r", b"b\n"], b"[0]:a\r[0]:b\n"),
        (["é".encode()[:1], "é".encode()[1:], b"\n"], "[0]:é\n".encode()),
        ([b"\xff\xfe\n"], b"[0]:\xff\xfe\n"),
        ([b"no end"], b"[0]:no end\n"),
        ([], b""),
    ],
)
def test_each_line_has_the_prefix_once(arrived: list[bytes], expected: bytes) -> None:
    """Lines end with either sign or both, bytes that are no text pass, and a last line gets its end."""
    assert expected == prefixed(arrived)


def test_a_rewritten_line_is_not_held_back() -> None:
    """A progress bar that ends with a carriage return shows at once, not with the next step."""
    assert LinePrefixer(lambda: b"[0]:").feed(b"10%\r") == b"[0]:10%\r"


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", "é".encode(), b"long line"]), max_size=12), st.data())
def test_it_does_not_matter_how_a_stream_is_cut(pieces: list[bytes], data: st.DataObject) -> None:
    """The same bytes make the same lines whatever the reads, and lose nothing but the prefixes."""
    text = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = prefixed([text])

    assert whole == prefixed(chunks)
    assert re.sub(rb"\[0\]:", b"", whole).removesuffix(b"\n") == text.removesuffix(b"\n")


def test_an_endless_line_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line over the limit comes out in parts, with one prefix."""
    monkeypatch.setattr(output, "LONGEST_LINE_NBYTES", 4)
    lines = LinePrefixer(lambda: b"[0]:")

    assert lines.feed(b"abcdef") == b"[0]:abcdef"
    assert lines.feed(b"gh\nnext\n") == b"gh\n[0]:next\n"


def test_a_rank_that_has_ended_is_read_to_what_it_left(tmp_path: Path) -> None:
    """The last line arrives although somebody still holds the pipe open and could write for ever."""
    reading, writing = os.pipe()
    console, copy = tmp_path / "console", tmp_path / "copy"
    console_descriptor = os.open(console, os.O_WRONLY | os.O_CREAT)
    copy_descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT)
    stream = RankStream(
        os.fdopen(reading, "rb"),
        LinePrefixer(lambda: b"[0]:"),
        Sink(console_descriptor),
        Sink(copy_descriptor, str(copy)),
    )
    os.write(writing, b"first\nlast")
    stream.finish()
    os.close(writing)
    os.close(console_descriptor)

    assert console.read_bytes() == copy.read_bytes() == b"[0]:first\n[0]:last\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copy_descriptor)


def test_a_full_disk_is_told_once_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be written is given up with one line."""
    sink = Sink(os.open("/dev/full", os.O_WRONLY), "out/rank.0/stdout")
    sink.write(b"lost\n")
    sink.write(b"lost too\n")
    told = capsys.readouterr().err

    assert told.count("\n") == 1
    assert "out/rank.0/stdout: No space left on device" in told
