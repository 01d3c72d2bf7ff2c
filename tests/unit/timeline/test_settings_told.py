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
        path.write_text(shard(form, *map(form.settings, told)))
        for _ in range(2):
            assert open_trace(path).meta.settings == expected


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
