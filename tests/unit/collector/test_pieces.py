"""Many pieces in one request: each is kept as if it had come alone, and what is no such body is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from tlkit.collector.service.alerts import Alerts
from tlkit.collector.service.api import create_api
from tlkit.collector.service.identity import digest_of
from tlkit.collector.service.jobs import Jobs
from tlkit.collector.service.pieces import MAX_PIECES, Piece, pack, unpack
from tlkit.collector.service.store import ShardStore

pieces = st.builds(Piece, st.text(max_size=20), st.integers(0, 10**17), st.text(max_size=16), st.binary(max_size=50))


@given(st.lists(pieces, max_size=5))
def test_what_is_packed_is_unpacked(several: list[Piece]) -> None:
    """Whatever the bytes are, line breaks and braces among them."""
    assert list(unpack(pack(several))) == several


@given(st.lists(pieces, min_size=1, max_size=3), st.data())
def test_damage_is_refused(several: list[Piece], data: st.DataObject) -> None:
    """Cut anywhere, a body is a shorter one or none."""
    body = pack(several)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    found = []
    try:
        found = list(unpack(cut))
    except ValueError:
        return
    assert found == several[: len(found)]


@pytest.mark.parametrize(
    "body",
    [b"x", b"\n", b"[]\n", b"{}\n", b'{"shard":1,"offset":0,"before":"","nbytes":0}\n', b"[" * 900 + b"\n",
     b'{"shard":"a","offset":-1,"before":"","nbytes":0}\n', b'{"shard":"a","offset":0,"before":"","nbytes":true}\n',
     b'{"shard":"a","offset":0,"before":"","nbytes":5}\nabc', pack([Piece("a", 0, "", b"")] * (MAX_PIECES + 1))],
)  # fmt: skip
def test_what_is_no_body_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        list(unpack(body))


def told(response: TestResponse) -> dict[str, Any]:
    """The JSON of an answer."""
    answer: dict[str, Any] = json.loads(response.get_data())
    return answer


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    """A collector."""
    store = ShardStore(tmp_path / "kept")
    jobs = Jobs(store, Alerts([]))
    yield create_api(jobs).test_client()
    jobs.stop()
    store.close()


def test_pieces_are_kept_as_if_each_had_come_alone(client: FlaskClient, tmp_path: Path) -> None:
    """Those that fit; of others the size is told; another run's are refused, and a name that is none."""
    where = "/v1/runs/r/pieces?run_id=ab"
    first = [Piece("t.json", 0, "", b"[\n"), Piece("t.rank1.json", 0, "", b"[\nx")]
    assert told(client.post(where, data=pack(first))) == {"shards": {"t.json": 2, "t.rank1.json": 3}}
    more = [Piece("t.json", 2, digest_of(b"[\n"), b"abc"), Piece("t.rank1.json", 7, "", b"gap")]
    assert told(client.post(where, data=pack(more))) == {"shards": {"t.json": 5, "t.rank1.json": 3}}
    assert (tmp_path / "kept" / "r" / "t.json").read_bytes() == b"[\nabc"
    assert (tmp_path / "kept" / "r" / "t.rank1.json").read_bytes() == b"[\nx"

    other = [Piece("t.json", 5, digest_of(b"other"), b"abc")]
    assert client.post(where, data=pack(other)).status_code == 412
    assert client.post("/v1/runs/r/pieces?run_id=cd", data=pack(more)).status_code == 412
    assert client.post(where, data=pack([Piece("../t.json", 0, "", b"")])).status_code == 400
    assert client.post(where, data=b"{}").status_code == 400
    assert client.post("/v1/runs/r/pieces?run_id=xyz", data=b"").status_code == 400
