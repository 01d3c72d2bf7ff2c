"""The parts of the collector that need no network."""

import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.traces import make_trace
from tlkit.collector import Analysis, analyze
from tlkit.collector.reports.report import make_report
from tlkit.collector.service import jobs as jobs_module
from tlkit.collector.service import live as live_module
from tlkit.collector.service import serving
from tlkit.collector.service.alerts import ARRIVAL_S, Alerts
from tlkit.collector.service.jobs import Jobs
from tlkit.collector.service.live import SUMS_STEPS, Follower
from tlkit.collector.service.metrics import MAX_LABEL, label, to_prometheus
from tlkit.collector.service.store import ShardStore
from tlkit.timeline.errors import TraceNotFoundError, UsageError
from tlkit.timeline.model.trace import COUNTER_COLUMNS, make_table
from tlkit.timeline.read.open import files_of
from tlkit.timeline.record.sampled_format import NO_STEP, SampledFormat
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader

from .test_diagnosis import changed, jittered


def test_labels_are_escaped() -> None:
    """As the text format wants it."""
    assert label('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    assert to_prometheus({}) == "\n"


def test_long_names_that_begin_alike_stay_apart() -> None:
    """Each is cut, to no more than the limit, and two never become one; half a character is no obstacle."""
    names = ["x" * MAX_LABEL + str(number) for number in range(100)] + ["x" * MAX_LABEL, "\ud800"]
    labels = {label(name) for name in names}
    assert len(labels) == len(names)
    assert all(len(name.encode()) <= MAX_LABEL for name in labels)


def test_no_sample_leaves_twice() -> None:
    """Counters whose names are alike for 200 characters, and two findings with one cause: Prometheus refuses doubles."""
    analysis = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    names = ["gpu " * 60 + suffix for suffix in "ab"]
    counters = make_table(COUNTER_COLUMNS, {"rank": [0, 0], "name": names, "ts_ns": [1, 2], "value": [1.0, 2.0]})
    doubled = replace(
        analysis,
        facts=replace(analysis.facts, trace=replace(analysis.trace, counters=counters)),
        findings=(*analysis.findings, replace(analysis.findings[0], predicted_gain=0.01)),
    )
    samples = [line.rpartition(" ") for line in to_prometheus({"r": doubled}).splitlines() if not line.startswith("#")]
    assert len({name for name, _, _ in samples}) == len(samples)
    assert [value for name, _, value in samples if name.startswith("tlkit_counter")] == ["1", "2"]
    (gain,) = [float(value) for name, _, value in samples if name.startswith("tlkit_finding_gain_ratio")][:1]
    assert gain > 0.01


def test_an_alert_is_told_once_until_it_is_over() -> None:
    """It begins to hold, holds on, ends, begins again."""
    told: list[str] = []
    alerts = Alerts(["gain>10%"], on_alert=told.append)
    slow = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    healthy = analyze(make_trace(jittered(changed(2, 30, []))))
    for analysis in (slow, slow, healthy, slow):
        alerts.look("r", analysis)
    assert len(told) == 2


def test_another_cause_is_another_alert() -> None:
    """Rank 1's forward passes, then rank 0's data: both are told, each once, however they change places."""
    told: list[str] = []
    alerts = Alerts(["gain>10%"], on_alert=told.append)
    forward = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    data = analyze(make_trace(jittered(changed(2, 30, [0], data=50))))
    assert forward.verdict.cause != data.verdict.cause
    for analysis in (forward, data, forward, data):
        alerts.look("r", analysis)
    assert len(told) == 2


def test_half_a_run_is_no_alert_while_the_rest_may_arrive() -> None:
    """Rank 1's shard is there later: until then only rank 0's waits are seen; where it never comes, that is said."""
    told: list[str] = []
    now_s = [100.0]
    alerts = Alerts(["step_ms>1"], on_alert=told.append, clock=lambda: now_s[0])
    trace = make_trace(jittered(changed(2, 30, [1], forward=50))[:1])
    half = analyze(replace(trace, meta=replace(trace.meta, size=2)))
    assert half.condition.is_incomplete
    alerts.look("r", half)
    assert told == []
    now_s[0] += ARRIVAL_S
    alerts.look("r", half)
    assert len(told) == 1


def shard(steps: int) -> str:
    """One of our shards, with so many steps of 10 ms, of which forward takes 8."""
    header = {
        "format": "tlkit.timeline/1", "run_id": "ab" * 8, "rank": 0, "size": 1, "local_rank": 0, "host": "h", "boot_id": "b",
        "process_id": 1, "device": "cpu",
        "clock": {"source": "CLOCK_MONOTONIC", "origin_ns": 0, "origin_unix_ns": 0, "offset_ns": 0, "uncertainty_ns": 0, "method": "self"},
    }  # fmt: skip
    lines = ["[", json.dumps({"name": "tlkit_shard", "ph": "M", "pid": 0, "tid": 0, "ts": 0, "args": header}) + ","]
    for number in range(steps):
        at = number * 10_000
        span = {"ph": "X", "pid": 0}
        lines.append(
            json.dumps(span | {"name": "FORWARD", "cat": "forward", "tid": 1, "ts": at + 1, "dur": 8000}) + ","
        )
        lines.append(
            json.dumps(
                span | {"name": "STEP", "cat": "step", "tid": 0, "ts": at, "dur": 10_000, "args": {"step": number}}
            )
            + ","
        )
    return "\n".join(lines) + "\n"


def test_a_follower_sees_what_grows_and_of_a_long_run_its_end(tmp_path: Path) -> None:
    """Nothing there, a few steps, more, and more than a window."""
    seen: list[tuple[int, int]] = []
    path = tmp_path / "t.json"
    follower = Follower(
        [str(path)], lambda analysis: seen.append((int(analysis.facts.steps.numbers[-1]), analysis.facts.steps.count)),
        window_nbytes=300_000,
    )  # fmt: skip
    with pytest.raises(TraceNotFoundError):
        follower.look()
    path.write_text(shard(50))
    assert follower.look()
    assert not follower.look()
    path.write_text(shard(5000))
    assert follower.look()

    assert seen[0] == (49, 49)
    assert seen[1][0] == 4999
    assert 500 < seen[1][1] < 3000


def header_of(rank: int) -> ShardHeader:
    """One of four ranks of a host."""
    clock = ShardClock(origin_ns=0, origin_unix_ns=0)
    return ShardHeader(
        run_id="ab" * 8, rank=rank, size=4, local_rank=rank, host="h", boot_id="b", process_id=rank, device="cpu", clock=clock
    )  # fmt: skip


def test_a_rank_that_becomes_slow_is_named_however_long_the_run_was(tmp_path: Path) -> None:
    """Where only sums are recorded: of ten thousand steps the newest are looked at, in which thirty slow ones count."""
    seen: list[Analysis] = []
    follower = Follower([str(tmp_path)], seen.append)
    for count in (50, 10_000, 10_030):
        for rank in range(4):
            form = SampledFormat(header_of(rank), NO_STEP, clock=lambda: 0.0)
            text, at_ns = "[\n" + "".join(form.head()), 0
            for number in range(count):
                took_ns = 5_000_000 + (3_000_000 if rank == 2 and number >= 10_000 else number * rank % 7 * 10_000)
                text += form.span("FORWARD", "forward", 1, at_ns, at_ns + took_ns, None)
                text += form.span("SYNCHRONIZE", "other", 1, at_ns + took_ns, at_ns + 9_000_000, None)
                text += form.span("STEP", "step", 0, at_ns, at_ns + 9_000_000, {"step": number})
                at_ns += 9_000_000
            (tmp_path / f"t.rank{rank}.json").write_text(text + form.pending())
        assert follower.look()

    assert seen[1].facts.steps.count == seen[2].facts.steps.count == SUMS_STEPS
    assert [finding.ranks for finding in seen[1].findings if finding.class_ == "straggler"] == []
    assert [finding.ranks for finding in seen[2].findings if finding.class_ == "straggler"] == [(2,)]


def test_a_report_is_made_once_for_all_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask for it, and again when there is a newer analysis; of a thousand ranks it takes half a second."""
    made: list[Analysis] = []

    def make(analysis: Analysis) -> dict[str, Any]:
        made.append(analysis)
        return make_report(analysis)

    monkeypatch.setattr(jobs_module, "make_report", make)
    (tmp_path / "t.json").write_text(shard(50))
    store = ShardStore(tmp_path / "kept")
    jobs = Jobs(store, Alerts([]))
    assert jobs.report("r") is None
    with monkeypatch.context() as context:
        context.setattr(Follower, "start", lambda _: None)  # each look is ours
        jobs.wake("r")
    keep = jobs._keeper("r")
    first, second = analyze(tmp_path / "t.json"), analyze(tmp_path / "t.json")
    keep(first)
    reports = [jobs.report("r") for _ in range(3)]
    keep(second)
    reports.append(jobs.report("r"))
    store.close()

    assert [analysis is first for analysis in made] == [True, False]
    assert len(set(reports)) == 1
    assert json.loads(reports[0] or "")["steps"] == json.loads(json.dumps(make_report(first)))["steps"]


def test_of_many_shards_new_ones_are_looked_for_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand that takes as long as a tenth of an analysis; what goes away is noticed at once, and looked for again."""
    now_s = [0.0]
    listings = []

    def list_files(paths: Sequence[str]) -> list[Path]:
        listings.append(now_s[0])
        now_s[0] += 1.0
        return files_of(paths)

    monkeypatch.setattr(live_module, "files_of", list_files)
    monkeypatch.setattr(live_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(live_module, "_MANY", 10)
    for rank in range(10):
        (tmp_path / f"t.rank{rank}.json").write_text(shard(8).replace('"rank": 0', f'"rank": {rank}'))
    follower = Follower([str(tmp_path)], lambda _: None)
    looks = [follower.look()]
    (tmp_path / "t.rank7.json").write_text(shard(9).replace('"rank": 0', '"rank": 7'))
    looks += [follower.look(), follower.look()]
    now_s[0] = 20.0
    looks.append(follower.look())
    (tmp_path / "t.rank8.json").unlink()
    with pytest.raises(FileNotFoundError):
        follower.look()
    looks.append(follower.look())

    assert looks == [True, True, False, False, True]
    assert listings == [0.0, 20.0, 21.0]


@pytest.mark.parametrize(("only_sums", "expected_s"), [(True, 3.0), (False, 10.0)])
def test_an_analysis_waits_for_as_long_as_it_kept_a_core(
    only_sums: bool, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it has one thread, what the collector stores meanwhile on others does not count."""
    at_s = {"monotonic": 0.0, "process_time": 0.0, "thread_time": 0.0}
    monkeypatch.setattr(live_module, "time", SimpleNamespace(**{name: lambda name=name: at_s[name] for name in at_s}))
    follower = Follower(["t.json"], lambda _: None)
    waits: list[float] = []

    def look() -> bool:
        for name, took_s in (("monotonic", 12.0), ("process_time", 10.0), ("thread_time", 3.0)):
            at_s[name] += took_s
        follower._only_sums = only_sums
        return True

    def wait(seconds: float) -> None:
        waits.append(seconds)
        follower._stopping.set()

    monkeypatch.setattr(follower, "look", look)
    monkeypatch.setattr(follower._stopping, "wait", wait)
    follower._run()

    assert waits == [expected_s]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_no_part_of_an_answer_waits_for_another(host: str) -> None:
    """A body is sent before its header is acknowledged, which the other side may put off."""
    try:
        listener = serving._listen(host, 0)
    except UsageError:
        pytest.skip("this machine has no such address")
    with listener, socket.create_connection(listener.getsockname()[:2]), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
