"""The extensions that docs/extending.md shows are run as they stand there."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.traces import make_trace, uniform
from tlkit.collector import analyze
from tlkit.collector.analysis import measure
from tlkit.collector.model.steps import find_steps
from tlkit.timeline.read.source import Source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def example(containing: str) -> dict[str, Any]:
    """What the page's block of Python with these words defines."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [each for each in blocks if containing in each]
    defined: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, str(PAGE), "exec"), defined)
    return defined


@pytest.mark.parametrize(("checkpoint_ms", "found"), [(20, True), (2, False)])
def test_the_rule_finds_what_it_says(checkpoint_ms: int, *, found: bool) -> None:
    """20 of 120 ms are checkpoints; 2 of 102 are not worth a change."""
    trace = make_trace(uniform(2, 30, {"forward": 40, "backward": 60, "checkpoint": checkpoint_ms}))
    rule = example("class CheckpointsInTheLoop")["CheckpointsInTheLoop"]()
    findings = rule.find(measure(trace, find_steps(trace)))
    assert [round(finding.predicted_gain, 2) for finding in findings] == ([0.17] if found else [])


def test_the_reader_reads_such_tables(tmp_path: Path) -> None:
    """Four ranks of which the third computes twice as long; its table opens, and the straggler is named."""
    rows = []
    for rank in range(4):
        for step in range(20):
            at = step * 0.2
            for name, seconds in (("forward-compute", 0.03), ("backward-compute", 0.06)):
                took = seconds * (2 if rank == 2 else 1)
                rows.append((rank, step, name, at, took))
                at += took
            rows.append((rank, step, "grads-reduce-scatter", at, step * 0.2 + 0.19 - at))
    path = tmp_path / "trace.parquet"
    pd.DataFrame(rows, columns=["rank", "step", "optype", "start_ts", "duration"]).to_parquet(path)

    reader = example('NAME = "operations-parquet"')
    assert reader["sniff"](path.read_bytes()[:64])
    trace = reader["read"]([Source(path)], lambda _done, _total: None)
    trace.check()
    assert len(trace.steps) == 80
    assert analyze(trace).verdict.ranks == (2,)
