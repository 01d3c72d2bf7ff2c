"""What the dashboard's server says: to requests that make no sense, and in how few bytes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from flask.testing import FlaskClient

from tlkit.collector.analysis import analyze
from tlkit.collector.service.compression import choose_encoding
from tlkit.dashboard.app import create_app
from tlkit.dashboard.source import Source
from tlkit.timeline.errors import UsageError

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"

CALLBACKS = "/_dash-update-component"
WHAT_IF = ("what-if-data", "what-if-compute", "what-if-bandwidth", "what-if-latency", "what-if-switches")


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    app = create_app(Source(analyze(SAMPLES / "slow-rank")))
    client: FlaskClient = app.server.test_client()
    client.get("/_dash-layout")  # the first request sets the callbacks up
    return client


def question(**changes: Any) -> dict[str, Any]:
    """What the browser sends for the sliders, changed."""
    inputs = [{"id": name, "property": "value", "value": 50} for name in WHAT_IF[:-1]]
    return {
        "output": "what-if-answer.children",
        "outputs": {"id": "what-if-answer", "property": "children"},
        "inputs": [
            *inputs,
            {"id": WHAT_IF[-1], "property": "value", "value": []},
            {"id": "version", "property": "data", "value": 0},
        ],
        "changedPropIds": ["what-if-data.value"],
        "state": [],
        **changes,
    }


def test_a_good_question_is_answered(client: FlaskClient) -> None:
    answer = client.post(CALLBACKS, json=question())
    assert answer.status_code == 200
    assert "A step would take" in answer.get_data(as_text=True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"{}",
        b"null",
        b'{"output": 1}',
        b'{"output": "nothing.x", "inputs": []}',
        json.dumps(question(inputs=[])).encode(),
        json.dumps(question(inputs=3)).encode(),
        json.dumps(question(inputs=[{"id": "x"}])).encode(),
        json.dumps(question(state=[{"id": "a", "property": "b"}])).encode(),
        json.dumps(question(changedPropIds=3)).encode(),
        json.dumps(question(changedPropIds=[{}])).encode(),
        json.dumps(question(outputs=None)).encode(),
        json.dumps(question(outputs=[3])).encode(),
    ],
)
def test_a_question_that_nobody_can_have_asked_is_a_400(client: FlaskClient, body: bytes) -> None:
    """In words, and without a traceback on the terminal."""
    answer = client.post(CALLBACKS, data=body, content_type="application/json")
    assert answer.status_code == 400
    assert "Traceback" not in answer.get_data(as_text=True)


def test_values_of_other_types_are_no_fault(client: FlaskClient) -> None:
    """Sliders that are no numbers, switches that are no list."""
    values: list[Any] = ["x", [1], {}, None, 5]
    inputs = [{"id": name, "property": "value", "value": value} for name, value in zip(WHAT_IF, values, strict=True)]
    inputs.append({"id": "version", "property": "data", "value": "x"})
    assert client.post(CALLBACKS, json=question(inputs=inputs)).status_code == 200


def test_a_fault_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The visitor hears that something is wrong, and the terminal what."""
    source = Source(analyze(SAMPLES / "slow-rank"))
    client = create_app(source).server.test_client()
    client.get("/_dash-layout")
    monkeypatch.setattr("tlkit.dashboard.app.predicted", lambda *_: 1 / 0)
    answer = client.post(CALLBACKS, json=question())
    assert answer.status_code == 500
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "division by zero" in said[0]


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/steps", 200), ("/steps/", 200), ("/nothing", 404), ("/steps/x", 404), ("/assets/no.js", 404)])  # fmt: skip
def test_unknown_pages_are_not_found(client: FlaskClient, path: str, status: int) -> None:
    assert client.get(path).status_code == status


def test_scripts_travel_compressed(client: FlaskClient) -> None:
    """By brotli or gzip as the browser likes; the content is the same; and they are kept by the browser."""
    path = next(part.split('"')[0] for part in client.get("/").get_data(as_text=True).split('src="') if "dash_renderer" in part)  # fmt: skip
    plain = client.get(path)
    assert "Content-Encoding" not in plain.headers
    assert plain.vary.as_set() >= {"accept-encoding"}
    unpack: dict[str, Any] = {"gzip": gzip.decompress, "br": lambda data: pa.Codec("brotli").decompress(data, len(plain.data), asbytes=True)}  # fmt: skip
    for encoding, decompress in unpack.items():
        for _ in range(2):  # made, and kept
            packed = client.get(path, headers={"Accept-Encoding": encoding})
            assert packed.headers["Content-Encoding"] == encoding
            assert len(packed.data) < len(plain.data) / 3
            assert int(packed.headers["Content-Length"]) == len(packed.data)
            assert decompress(packed.data) == plain.data
            assert int(packed.headers["Cache-Control"].partition("max-age=")[2]) > 86400


def test_short_and_refused_answers_are_left_alone(client: FlaskClient) -> None:
    everything = {"Accept-Encoding": "gzip, br"}
    assert "Content-Encoding" not in client.get("/data/span?number=0", headers=everything).headers
    assert "Content-Encoding" not in client.get("/nothing-here", headers={"Accept-Encoding": "identity"}).headers


@pytest.mark.parametrize(("said", "expected"), [("", None), ("br;q=x", None), ("*", None), ("deflate, gzip", "gzip"), ("gzip, br;q=0", "gzip"), ("br , gzip", "br")])  # fmt: skip
def test_encodings(said: str, expected: str | None) -> None:
    assert choose_encoding(said) == expected


def test_a_page_that_can_ask_the_ranks_has_a_button_for_it() -> None:
    """What the flight recorder's side says is shown; what fails, too, and as text; a click that was none asks nothing."""
    asked: list[int] = []

    def ask() -> str:
        asked.append(1)
        if len(asked) > 1:
            raise UsageError("the collector refuses: \x1b[31mno")
        return "asked (request 1)"

    source = Source(analyze(SAMPLES / "slow-rank"), is_live=True)
    source.ask_dump = ask
    client = create_app(source, token="sesame").server.test_client()
    key = {"Authorization": "Bearer sesame"}
    assert '"dump"' in client.get("/_dash-layout", headers=key).get_data(as_text=True)
    body = {
        "output": "dump-answer.children",
        "outputs": {"id": "dump-answer", "property": "children"},
        "inputs": [{"id": "dump", "property": "n_clicks", "value": 1}],
        "changedPropIds": ["dump.n_clicks"],
        "state": [],
    }
    assert client.post(CALLBACKS, json=body).status_code == 401
    assert client.post(CALLBACKS, json=body, headers={**key, "Origin": "http://evil.example"}).status_code == 403
    assert asked == []
    answers = [client.post(CALLBACKS, json=body, headers=key).get_data(as_text=True) for _ in range(2)]
    assert "asked (request 1)" in answers[0]
    assert "the collector refuses" in answers[1]
    assert "\\u001b" not in answers[1]
    body["inputs"] = [{"id": "dump", "property": "n_clicks", "value": 0}]
    assert client.post(CALLBACKS, json=body, headers=key).status_code == 204
    assert len(asked) == 2


def test_a_page_that_can_ask_nobody_has_no_button(client: FlaskClient) -> None:
    assert '"dump"' not in client.get("/_dash-layout").get_data(as_text=True)
