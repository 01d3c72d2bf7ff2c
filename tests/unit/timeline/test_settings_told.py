"""What a shard tells of settings that make its rank slow."""

from pathlib import Path

import pytest

from tlkit.timeline.read import cache
from tlkit.timeline.read.open import open_trace
from tlkit.timeline.record.sampled_format import NO_STEP, SampledFormat
from tlkit.timeline.record.shard_format import ShardFormat

from .test_step_sums import HEADER, record


def shard(form: ShardFormat, *told: str) -> str:
    """Ten steps, and then the lines."""
    text = record(form, [[(2, 0, 1000, []), (4, 0, 500, [])]] * 10)
    return text.replace('{"name":"tlkit_end"', "".join(told) + '{"name":"tlkit_end"')


@pytest.mark.parametrize("form", [ShardFormat(HEADER), SampledFormat(HEADER, NO_STEP)])
def test_the_last_word_holds(form: ShardFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from the cache, and of a recording of sums."""
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_NBYTES", 0)
    path = tmp_path / "t.json"
    tracing, more = {"tracemalloc": 0.0}, {"double-precision": 0.25, "tracemalloc": 0.0}
    cases: list[tuple[list[dict[str, float]], dict[int, dict[str, float]]]] = [
        ([], {}),
        ([tracing], {HEADER.rank: tracing}),
        ([tracing, more], {HEADER.rank: more}),
        ([tracing, {}], {}),
    ]
    for told, expected in cases:
        path.write_text(shard(form, *(form.settings(one, {}) for one in told)))
        for _ in range(2):
            assert open_trace(path).meta.settings == expected


def test_words_are_told_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of settings that are on, the newest, at most 200 characters, also from the cache."""
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_NBYTES", 0)
    path, form = tmp_path / "t.json", ShardFormat(HEADER)
    words = {"computed-again": "Enc\u2028oder" * 50, "tracemalloc": "is not on"}
    path.write_text(
        shard(form, form.settings({"computed-again": 0.5}, {}), form.settings({"computed-again": 0.4}, words))
    )
    for _ in range(2):
        meta = open_trace(path).meta
        assert meta.settings == {HEADER.rank: {"computed-again": 0.4}}
        assert meta.setting_details == {HEADER.rank: {"computed-again": ("Enc\u2028oder" * 50)[:200]}}


@pytest.mark.parametrize("details", ["1", "[]", "null", '{"computed-again":{"a":1},"<b>":"x"}'])
def test_words_that_are_none(details: str, tmp_path: Path) -> None:
    """Whatever stands there, texts of what is on are all that comes out."""
    path = tmp_path / "t.json"
    args = f'{{"on":["computed-again"],"details":{details}}}'
    path.write_text(
        shard(ShardFormat(HEADER), f'{{"name":"tlkit_settings","ph":"M","pid":0,"tid":0,"ts":0,"args":{args}}},\n')
    )
    told = open_trace(path).meta.setting_details

    assert all(set(words) <= {"computed-again"} for words in told.values())
    assert all(isinstance(text, str) for words in told.values() for text in words.values())


@pytest.mark.parametrize("on", ['"tracemalloc"', "null", '[1,{"a":[]},"of another version","<script>"]', "{}"])
def test_what_it_has_no_words_for_is_left_out(on: str, tmp_path: Path) -> None:
    """A shard is a stranger's text."""
    path = tmp_path / "t.json"
    line = f'{{"name":"tlkit_settings","ph":"M","pid":0,"tid":0,"ts":0,"args":{{"on":{on}}}}},\n'
    path.write_text(shard(ShardFormat(HEADER), line))
    assert open_trace(path).meta.settings == {}


@pytest.mark.parametrize(
    "shares", ['{"double-precision":"all"}', '{"double-precision":-1}', '{"double-precision":1e9}', "[1]", "null"]
)
def test_a_share_that_is_none_is_unknown(shares: str, tmp_path: Path) -> None:
    """As in shards of earlier versions."""
    path = tmp_path / "t.json"
    args = f'{{"on":["double-precision"],"shares":{shares}}}'
    line = f'{{"name":"tlkit_settings","ph":"M","pid":0,"tid":0,"ts":0,"args":{args}}},\n'
    path.write_text(shard(ShardFormat(HEADER), line))
    assert open_trace(path).meta.settings == {HEADER.rank: {"double-precision": 0.0}}
