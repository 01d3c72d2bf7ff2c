"""What is asked of flight recorders through a collector: who may ask, who passes it on, and that it is obeyed once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tlkit.collector.service.alerts import Alerts
from tlkit.collector.service.api import create_api
from tlkit.collector.service.dumps import HEARD_S, Dumps, NoRecorderError
from tlkit.collector.service.jobs import Jobs
from tlkit.collector.service.store import ShardStore
from tlkit.timeline.record.flight_requests import MAX_WHY

HEAD = b'[\n{"name":"tlkit_shard","ph":"M","pid":0,"tid":0,"ts":0,"args":{"run_id":"abab","rank":0}},\n'


def test_a_request_waits_until_it_was_passed_on() -> None:
    """The sender hears of it as often as it asks; two requests at once are one."""
    dumps = Dumps()
    assert dumps.hear("a") is None
    number = dumps.ask("a", "loss is nan")
    assert dumps.ask("a", "me too") == number
    asked = dumps.hear("a")
    assert asked == {"request": number, "why": f"loss is nan (request {number})"} == dumps.hear("a")
    assert dumps.state("a") == {"possible": True, "waiting": number, "passed_on": ""}
    dumps.pass_on("a", "another")
    assert dumps.hear("a") == asked
    dumps.pass_on("a", number)
    assert dumps.hear("a") is None
    assert dumps.state("a") == {"possible": True, "waiting": "", "passed_on": number}
    assert dumps.ask("a", "again") != number


def test_the_number_survives_a_long_reason() -> None:
    """Ranks tell requests apart by it."""
    dumps = Dumps()
    dumps.hear("a")
    number = dumps.ask("a", "x" * 10_000)
    asked = dumps.hear("a")
    assert asked is not None
    assert asked["why"].endswith(f"(request {number})")
    assert len(asked["why"]) <= MAX_WHY


def test_nobody_is_asked_who_is_not_there() -> None:
    """A run that nobody sends, or has stopped to be sent."""
    now_s = [0.0]
    dumps = Dumps(lambda: now_s[0])
    with pytest.raises(NoRecorderError, match="HOROVOD_FLIGHT_RECORDER"):
        dumps.ask("a", "")
    dumps.hear("a")
    now_s[0] = HEARD_S + 1
    with pytest.raises(NoRecorderError):
        dumps.ask("a", "")
    assert dumps.state("a") == {"possible": False, "waiting": "", "passed_on": ""}


def told(response: TestResponse) -> dict[str, Any]:
    """The JSON of an answer."""
    answer: dict[str, Any] = json.loads(response.get_data())
    return answer


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    """A collector with a token."""
    store = ShardStore(tmp_path / "kept")
    jobs = Jobs(store, Alerts([]))
    yield create_api(jobs, token="sesame").test_client()
    jobs.stop()
    store.close()


def test_only_who_has_the_token_may_ask(client: FlaskClient) -> None:
    """Without it, with a wrong one, and from another web site nothing is asked."""
    key = {"Authorization": "Bearer sesame"}
    put = "/v1/runs/r/shards/t.json?offset=0&dumps=1"
    assert told(client.put(put, data=HEAD, headers=key)) == {"size": len(HEAD)}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {**key, "Origin": "http://evil.example"}):
        assert client.post("/v1/runs/r/dump", headers=headers).status_code in {401, 403}
    assert told(client.get("/v1/runs/r", headers=key))["dump"] == {"possible": True, "waiting": "", "passed_on": ""}

    asked = client.post("/v1/runs/r/dump?why=odd", headers=key)
    assert asked.status_code == 202
    number = told(asked)["request"]
    said = told(client.post("/v1/runs/r/alive?dumps=1", headers=key))["dump"]
    assert said == {"request": number, "why": f"odd (request {number})"}
    assert "dump" not in told(client.post("/v1/runs/r/alive", headers=key))
    assert client.post(f"/v1/runs/r/dump/{number}").status_code == 401
    assert client.post(f"/v1/runs/r/dump/{number}", headers=key).status_code == 200
    assert told(client.get("/v1/runs/r", headers=key))["dump"]["passed_on"] == number
    assert client.post("/v1/runs/none/dump", headers=key).status_code == 404
