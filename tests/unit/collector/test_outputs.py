"""What other programs and browsers get: the schema, the HTML file, tables, conditions against a baseline."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from tests.traces import Parts, make_trace, uniform
from tlkit.collector import analyze, make_report
from tlkit.collector.commands.analyze import main
from tlkit.collector.compare.baseline import check_change, read_baseline
from tlkit.collector.model.breakdown import PARTS
from tlkit.collector.reports.evidence import evidence_rows
from tlkit.collector.reports.html import to_html
from tlkit.collector.reports.summary import summarize
from tlkit.timeline.errors import UsageError

from .test_diagnosis import HEALTHY, changed, jittered

SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "docs" / "report.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "steps",
    [jittered(uniform(4, 30, HEALTHY)), jittered(changed(2, 30, [1], forward=50)), [[], []]],
    ids=["healthy", "straggler", "nothing"],
)
def test_reports_follow_their_schema(steps: list[list[Parts]]) -> None:
    """Whatever is in them."""
    report = json.loads(json.dumps(make_report(analyze(make_trace(steps)))))
    jsonschema.validate(report, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_reports_of_real_traces_follow_their_schema(
    real_traces: Callable[[str], list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Horovod's, the profiler's and Nsight's, with predictions where they can be made."""
    profiles = [*real_traces("kineto/rank?.json.gz"), *real_traces("kineto/*sampled*")]
    assert len(profiles) >= 2
    for path in [*real_traces("horovod/*"), *profiles]:
        options = ["--what-if", "overlap=perfect"] if path in profiles else []
        assert main([str(path), "--json", "-", *options]) == 0
        report = json.loads(capsys.readouterr().out)
        jsonschema.validate(report, SCHEMA, cls=jsonschema.Draft202012Validator)
        assert len(report["what_if"]) == len(options) // 2


def test_the_report_says_how_far_the_model_is_from_the_measured_steps() -> None:
    """Rounded for the file; null where there are no steps to replay."""
    analysis = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    assert analysis.facts.replay is not None
    assert make_report(analysis)["model_error_ratio"] == pytest.approx(analysis.facts.replay.error_ratio, abs=1e-6)
    assert make_report(analyze(make_trace([[], []])))["model_error_ratio"] is None


def test_the_schema_names_every_part_of_a_step() -> None:
    """So that a new part is not forgotten."""
    assert SCHEMA["properties"]["breakdown"]["properties"]["median_step_ns"]["required"] == list(PARTS)


def test_html_is_one_file_that_asks_nobody() -> None:
    """Small, without a program, dark and printable; it loads nothing, and names stay text."""
    hostile = "</svg><script>alert(1)</script>\u202e\x00"
    trace = make_trace(jittered(changed(2, 30, [1], forward=50)))
    trace = replace(trace, meta=replace(trace.meta, files=(hostile,), hosts={0: hostile, 1: hostile}))
    analysis = analyze(trace)
    text = to_html(summarize(analysis), analysis)

    assert "Rank 1 works" in text
    assert "What holds the steps: the critical path" in text
    assert not re.findall(r'(?:src|href)\s*=\s*["\']', text)
    assert "<script" not in text
    assert "\u202e" not in text
    assert "\x00" not in text
    assert len(text) < 500_000
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) >= 5
    for drawing in drawings:
        ET.fromstring(drawing)


def test_words_of_a_report_begin_in_line() -> None:
    """Columns of words are aligned left; evidence has a line for each of its numbers, however long a list of steps is."""
    analysis = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    text = to_html(summarize(analysis), analysis)
    assert '<th class="words">why</th><th>mean</th>' in text
    assert (
        text.count("<table") == len(re.findall('<div class="scrolls"[^>]*><table', text)) > 1
    )  # on a phone tables scroll, not the page
    evidence = re.findall('<p class="evidence">(.*?)</p>', text, re.DOTALL)
    assert [len(found.split("<br>")) for found in evidence] == [
        len(evidence_rows(finding.evidence)) for finding in summarize(analysis).shown_findings
    ]


def test_tables_for_a_notebook_hold_what_the_report_says() -> None:
    """Parts sum to the step; the critical path leads through the slow rank; findings come with their gains."""
    analysis = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    steps = analysis.steps

    assert len(steps) == 2 * analysis.facts.steps.count
    assert (steps[list(PARTS)].sum(axis=1) == steps["step_ns"]).all()
    assert analysis.findings_table.iloc[0]["cause"] == analysis.verdict.cause == "slow-forward"
    first = analysis.critical_path.iloc[0]
    assert first["rank"] == 1
    assert analysis.critical_path["share"].sum() == pytest.approx(1)


def run(factor: float, seed: int) -> list[list[Parts]]:
    chance = random.Random(seed)
    parts = HEALTHY | {"forward": 30 * factor, "backward": 60 * factor}
    return [
        [[(part, ms * chance.uniform(0.9, 1.1)) for part, ms in parts.items()] for _ in range(60)] for _ in range(2)
    ]


@pytest.mark.parametrize(("factor", "is_broken"), [(1.0, False), (1.2, True)])
def test_a_run_is_held_against_its_baseline(factor: float, is_broken: bool, tmp_path: Path) -> None:
    """Chance is let pass, 20 % is not."""
    kept = tmp_path / "base.json"
    kept.write_text(json.dumps(make_report(analyze(make_trace(run(1.0, 1))))))
    said = check_change(analyze(make_trace(run(factor, 2))), read_baseline(str(kept)), "step_ms>+5%")

    assert (said is not None) == is_broken
    if said:
        assert "and was" in said


@pytest.mark.parametrize("condition", ["step_ms>5", "step_ms<+5%", "nonsense>+5%", "step_ms>+5"])
def test_conditions_that_are_not_understood_are_one_line(condition: str, tmp_path: Path) -> None:
    """With what is."""
    kept = tmp_path / "base.json"
    kept.write_text(json.dumps(make_report(analyze(make_trace(run(1.0, 1))))))
    with pytest.raises(UsageError, match="against a baseline write"):
        check_change(analyze(make_trace(run(1.0, 2))), read_baseline(str(kept)), condition)


def test_a_baseline_that_is_none_is_one_line(tmp_path: Path) -> None:
    """A file of something else, or a report that lacks what is needed."""
    broken = tmp_path / "b.json"
    broken.write_text('{"schema": "tlkit.report/1", "steps": {}}')
    with pytest.raises(UsageError, match="lacks"):
        read_baseline(str(broken))
