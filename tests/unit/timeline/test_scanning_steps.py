"""Files whose events are all spelled alike, as programs write them: what the compiled scanner foresees is what it would have read."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.unit.timeline.test_scanning import same_everywhere
from tlkit.timeline.errors import TraceError
from tlkit.timeline.read.source import Source
from tlkit.timeline.scanning import has_compiled_scanner, scan

#: Texts of values as they stand in a file; a few are no JSON.
digits = st.from_regex(r"(0|[1-9][0-9]{0,18})(\.[0-9]{1,9})?", fullmatch=True)
values = st.one_of(
    digits,
    digits,
    st.sampled_from(["-0", "-1", "007", "00", "1.", "1e3", "12345678e1", "1234567.8", "12345678.5", "null", "true", "x", ""]),
    st.sampled_from(["[1, 1, 1]", '[["a"], {}]', "[01]", '{"a": 1}', '"a"', '"\\u00e9"', '"7"', '"stream"', '"\\x"', '""']),
    st.text("ab\\é😀", max_size=20).map(json.dumps),
)  # fmt: skip
spaces = st.sampled_from(["", "", " ", "\n", "\n    ", "\n" + 70 * " "])
keys_of_events = st.lists(
    st.sampled_from(["ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "zz", "z\\u007a", ""]),
    min_size=1,
    max_size=9,
    unique=True,
)
keys_of_args = st.lists(
    st.sampled_from(["correlation", "External id", "stream", "Collective name", "x", "e\\n", "", "k" * 70]), max_size=6
)


@st.composite
def kinds_of_events(draw: st.DrawFn) -> list[str]:
    """An event as a program writes it: everything but the values, of which there is one behind each text."""
    before, behind = draw(spaces), draw(spaces)
    texts, separator = [], "{"
    for key in draw(keys_of_events):
        texts.append(f'{separator}{before}"{key}"{behind}:{behind}')
        separator = ","
    args = draw(keys_of_args)
    if args:
        texts[-1:] = [texts[-1], f'{separator}{before}"args":{behind}{{"{args[0]}":{behind}']
        texts += [f'{behind},{before}"{key}":{behind}' for key in args[1:]]
        return [*texts, f"{before}}}{behind}}}"]
    return [*texts, f"{behind}}}"]


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Events of a few kinds in any order, and perhaps damaged."""
    kinds = draw(st.lists(kinds_of_events(), min_size=1, max_size=3))
    written = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=3, max_size=12)):
        few = draw(st.lists(values, min_size=1, max_size=4))
        written.append("".join(f"{text}{few[number % len(few)]}" for number, text in enumerate(kind[:-1])) + kind[-1])
    array = ("[" + draw(st.sampled_from([",", ",\n  "])).join(written) + "]").encode()
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(array)))
        array = (
            array[:at] + draw(st.sampled_from([b"", b" ", b'"', b"\\", b",", b"}", b"0", b"\xff"])) + array[at + 1 :]
        )
    return array + draw(st.sampled_from([b"", b" " * 80]))


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=files())
def test_what_is_foreseen_is_what_is_there(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one event in another one, with any values between them."""
    path = tmp_path / "t.json"
    path.write_bytes(content)
    try:
        same_everywhere(path, monkeypatch)
    except TraceError as error:
        assert str(path) in str(error)


@pytest.mark.skipif(not has_compiled_scanner(), reason="the compiled scanner is not there")
@pytest.mark.parametrize("keys", [1, 3, 40])
def test_more_spellings_than_can_be_remembered(keys: int, tmp_path: Path) -> None:
    """Keys that are never the same again: nothing is foreseen, and everything is read."""
    path = tmp_path / "t.json"
    written: list[dict[str, Any]] = [
        {"ph": "X", "name": "n", "ts": number, "args": {f"k{number}_{key}": key for key in range(keys)} | {"correlation": number}}
        for number in range(12_000 // keys)
    ]  # fmt: skip
    path.write_text(json.dumps(written))
    source = Source(path)

    events = scan(source, integers=("correlation",), compiled=True)

    assert events.start.tolist() == [number * 1000 for number in range(len(written))]
    assert events.dense("correlation").tolist() == list(range(len(written)))
    assert not source.dropped


@pytest.mark.skipif(not has_compiled_scanner(), reason="the compiled scanner is not there")
def test_a_key_means_something_else_in_args(tmp_path: Path) -> None:
    """And the same spelling behind a brace is none behind a comma."""
    event = '{"ph": "X", "name": "a", "ts": 1, "args": {"ph": "B", "name": "b", "ts": 2, "correlation": 3}, "dur": 4}'
    wrong = '{"ph": "X", "name": "a", "ts": 1, "args": {, "name": "b"}, "dur": 4}'
    path = tmp_path / "t.json"
    path.write_text("[" + ", ".join([event] * 5 + [wrong] + [event] * 5) + "]")
    source = Source(path)

    events = scan(source, integers=("correlation",), texts=("name",), compiled=True)

    assert (events.start.tolist(), events.duration.tolist()) == ([1000] * 10, [4000] * 10)
    assert events.texts["name"] == ["a"]
    assert events.keys["name"].texts == ["b"]
    assert source.dropped == {"broken": 1}


@pytest.mark.parametrize("phase", ["\\\\", '\\"', "\\u0058", "\\n", "\\u00e9", "\\\\n", "X\\n", "\\u007f"])
def test_a_phase_can_be_escaped(phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backslash cannot be written in another way, and no event is broken for that."""
    path = tmp_path / "t.json"
    path.write_text('[{"ph": "' + phase + '", "name": "a", "ts": 1}, {"ph": "X", "name": "b", "ts": 2}]')

    result, dropped = same_everywhere(path, monkeypatch)

    assert result["start"] == [1000, 2000]
    assert not dropped


arrays = st.recursive(
    st.sampled_from(["1", "12", "64", '"float"', '""', '"a]"', '"\\\\"', "null", "1.5", "01", "-", "x"]),
    lambda inner: st.lists(inner, max_size=4).flatmap(
        lambda items: st.sampled_from([", ", ",", " ,"]).map(lambda comma: "[" + comma.join(items) + "]")
    ),
    max_leaves=24,
).filter(lambda text: text.startswith("["))


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(few=st.lists(arrays, min_size=1, max_size=4), picks=st.lists(st.integers(0, 99), min_size=6, max_size=20))
def test_arrays_that_come_again_are_what_they_are(
    few: list[str], picks: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or cut or broken, with others in between that begin alike, and with something behind them that does not belong there."""
    path = tmp_path / "t.json"
    behind = ["", "", "", "", " ", "]", "1", ",", '"']
    values = [few[pick % len(few)][: -1 if pick == 99 else None] + behind[pick % len(behind)] for pick in picks]
    path.write_text(
        "[" + ",".join(f'{{"ph":"X","name":"n","ts":{n},"args":{{"x":{value},"correlation":{n}}}}}' for n, value in enumerate(values))
        + "]" + 80 * " "
    )  # fmt: skip
    try:
        same_everywhere(path, monkeypatch)
    except TraceError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize("length", [62, 63, 64, 65, 66, 200])
def test_arrays_that_differ_in_the_last_byte_are_told_apart(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of as many bytes as are remembered, one less, and one more."""
    path = tmp_path / "t.json"
    sound = '["' + "a" * (length - 4) + '"]'
    wrong = sound[:-1] + "}"
    texts = [*[sound] * 3, wrong, sound]
    path.write_text(
        "[" + ",".join(f'{{"ph":"X","name":"n","ts":1,"args":{{"x":{text}}}}}' for text in texts) + "]" + 80 * " "
    )

    result, dropped = same_everywhere(path, monkeypatch)

    assert (len(result["start"]), dropped) == (4, {"broken": 1})


def test_names_that_begin_and_end_alike_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the instances of a template do: they differ in the middle only."""
    names = [f"void kernel<{number:03}, float, float>(float*, int)" for number in range(200)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"ph": "X", "name": name, "ts": 1} for name in names * 2]))

    result, _ = same_everywhere(path, monkeypatch)

    assert [name for _, name in result["name"]] == names * 2
