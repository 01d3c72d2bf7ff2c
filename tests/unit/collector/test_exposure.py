"""Pages say what the analysis says, and nothing that it disowns."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tlkit.collector.analysis import Analysis, analyze
from tlkit.collector.model.bandwidth import fit_line
from tlkit.collector.model.breakdown import EXPOSED, IDLE
from tlkit.collector.model.exposure import exposed_by, exposed_by_collective, layer_of
from tlkit.collector.reports.summary import summarize
from tlkit.timeline.model.trace import Trace

from .runs import even, record, straggling

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


def horovods_own(path: Path) -> Path:
    """Twenty steps of two tensors as Horovod writes them: rank 0's negotiation and collectives, and nothing of what it computes."""
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in enumerate(("grad.a", "grad.b"))
    ]  # fmt: skip
    at = 0
    for _ in range(20):
        for pid in range(2):
            at += 400
            events += [
                {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "pid": pid, "ts": at},
                {"ph": "X", "name": "0", "pid": pid, "ts": at + 10, "dur": 0},
                {"ph": "X", "name": "1", "pid": pid, "ts": at + 900, "dur": 0},
                {"ph": "E", "pid": pid, "ts": at + 1000},
                {"ph": "B", "name": "ALLREDUCE", "pid": pid, "ts": at + 1000},
                {"ph": "B", "name": "GLOO_ALLREDUCE", "pid": pid, "ts": at + 1100},
                {"ph": "E", "pid": pid, "ts": at + 3000},
                {"ph": "E", "pid": pid, "ts": at + 3100, "args": {"dtype": "float32", "shape": "[1000]"}},
            ]
        at += 30_000
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)))
    return path


def sized() -> Trace:
    """Three ranks, rank 2 slow, with collectives of 4 MB."""
    trace = record(straggling(even(3, 30), 2, 5_000_000))
    return replace(trace, collectives=trace.collectives.assign(nbytes=4_000_000))


def unaligned() -> Analysis:
    """The same, with clocks that have nothing to do with each other."""
    trace = sized()
    tables = {}
    for name in ("spans", "collectives", "tensors", "steps"):
        table = getattr(trace, name).copy()
        for column in ("start_ns", "end_ns", "submitted_ns", "negotiated_ns"):
            if column in table:
                table[column] = table[column].where(
                    table[column] < 0, table[column] + table["rank"].astype("int64") * 7_000_000_000
                )
        tables[name] = table
    meta = replace(trace.meta, clock=replace(trace.meta.clock, method="none"))
    return analyze(replace(trace, meta=meta, **tables))


def test_of_horovods_files_nobody_says_what_computation_hides(tmp_path: Path) -> None:
    """Its notes say that it cannot be known, and no number says otherwise."""
    found = summarize(analyze(horovods_own(tmp_path / "t.json")))
    assert any("hidden behind computation is not visible" in note for note in found.notes)
    assert found.communication is not None
    assert found.communication.exposed_ns is None
    assert found.communication.hidden_ns is None
    assert found.communication.under_way_ns > 0
    assert not found.shows_hidden
    assert found.waits == ()


def test_without_a_common_clock_nobody_waits_for_whom() -> None:
    """No waits and no path across ranks; bandwidths come from durations, which need no clock."""
    analysis = unaligned()
    found = summarize(analysis)
    assert not analysis.facts.has_one_clock
    assert found.waits == ()
    assert found.path == ()
    aligned = summarize(analyze(sized()))
    assert {row.culprit for row in aligned.waits} == {2}
    for row, known in zip(found.collectives, aligned.collectives, strict=True):
        assert row.transfer_ns == pytest.approx(known.transfer_ns, rel=0.2)
        assert row.busbw_gbps == pytest.approx(known.busbw_gbps, rel=0.25)
        assert row.busbw_gbps > 0
        assert "-" not in row.bandwidth_words


def test_the_straggler_is_not_averaged_away() -> None:
    """Exposed time by rank: who waits most, and the slow rank, which waits least."""
    found = summarize(analyze(SAMPLES / "slow-rank"))
    assert found.slow_rank == 1
    assert found.communication is not None
    most, least = found.communication.most_exposed, found.communication.least_exposed
    assert most is not None
    assert least is not None
    assert (most[0], least[0]) == (0, 1)
    assert most[1] > 5 * least[1]
    assert found.waterfall[0].part == "forward"
    assert 40e6 < found.waterfall[0].excess_ns < 60e6


@pytest.mark.parametrize("name", ["no-fusion", "huge-gradient", "slow-rank"])
def test_every_exposed_moment_belongs_to_one_collective(name: str) -> None:
    """By collective, tensor, layer and caller the sums are the breakdown's, but for what is exposed after the last one of a rank."""
    facts = analyze(SAMPLES / name).facts
    exposed = sum(float(facts.part(part).mean()) for part in EXPOSED if part != IDLE)
    by_collective = float(exposed_by_collective(facts)["exposed_ns"].sum()) / facts.steps.start_ns.size
    assert by_collective == pytest.approx(exposed, rel=0.03)
    for what in ("tensor", "layer", "caller", "kind", "process set"):
        assert float(exposed_by(facts, what)["exposed_ns"].sum()) == pytest.approx(by_collective, rel=0.03), what


def test_the_largest_gradient_is_what_the_training_waits_for() -> None:
    assert exposed_by(analyze(SAMPLES / "huge-gradient").facts, "layer")["name"].iloc[0] == "huge"


def test_layers() -> None:
    assert layer_of("allreduce.model.0.conv.weight") == "model.0.conv"
    assert layer_of("DistributedOptimizer.allreduce.head.bias") == "head"
    assert layer_of("allreduce.bucket 3") == "bucket 3"


def test_a_line_through_sizes() -> None:
    """Stray points do not bend it; two sizes, near ones and falling times make none."""
    sizes = np.array([1e4, 1e5, 1e6, 1e7, 1e8])
    took = 50_000 + sizes / 2.0
    took[2] *= 20
    line = fit_line("allreduce", sizes, took)
    assert line is not None
    assert line.algbw_gbps == pytest.approx(2.0, rel=0.05)
    assert line.latency_ns == pytest.approx(50_000, rel=0.3)
    assert fit_line("allreduce", sizes[:2], took[:2]) is None
    assert fit_line("allreduce", np.array([1.0, 1.1, 1.2]), np.array([1.0, 2.0, 3.0])) is None
    assert fit_line("allreduce", sizes, took[::-1]) is None
