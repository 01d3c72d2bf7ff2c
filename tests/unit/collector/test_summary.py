"""One summary, four views: the terminal, HTML, Markdown and JSON show the same numbers."""

import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.traces import Parts, make_trace, uniform
from tlkit.collector import Analysis, analyze
from tlkit.collector.commands.analyze import main
from tlkit.collector.compare.scaling import scaling
from tlkit.collector.model.breakdown import typical_parts, typical_parts_of_each
from tlkit.collector.model.words import milliseconds
from tlkit.collector.predict.what_if import predict
from tlkit.collector.reports.html import to_html
from tlkit.collector.reports.markdown import to_markdown
from tlkit.collector.reports.report import MAX_DURATIONS, _chosen, to_report
from tlkit.collector.reports.rows import BlameRow, PlanStep
from tlkit.collector.reports.summary import Summary, summarize
from tlkit.collector.reports.terminal import render

from .test_device import kineto
from .test_diagnosis import HEALTHY, changed, jittered
from .test_what_if import step

SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "docs" / "report.schema.json").read_text(encoding="utf-8"))


def with_stalls(count: int = 61, every: int = 10, stall_ms: float = 1500) -> list[list[Parts]]:
    """Healthy steps of about 97 ms on two ranks, of which each tenth waits for a checkpoint."""
    steps = uniform(2, count, HEALTHY)
    for rank in steps:
        for number in range(every // 2, count, every):
            rank[number] = [*rank[number], ("checkpoint", stall_ms)]
    return steps


def printed(summary: Summary) -> str:
    """What the terminal shows, on lines as long as they need to be."""
    stream = io.StringIO()
    render(summary, Console(file=stream, width=1000, color_system=None, highlight=False, markup=False))
    return stream.getvalue()


def views(analysis: Analysis, summary: Summary) -> dict[str, str]:
    """The three texts, without markup."""
    document = re.sub(r"<(script|style)>.*?</\1>", "", to_html(summary, analysis), flags=re.DOTALL)
    return {
        "terminal": printed(summary),
        "html": html.unescape(re.sub(r"<[^>]+>", " ", document)),
        "markdown": html.unescape(to_markdown(summary)).replace("\\", ""),
    }


def test_four_views_of_one_analysis_show_the_same_numbers() -> None:
    """Steps, parts, findings, predictions, scaling and notes."""
    analysis = analyze(make_trace(jittered(changed(2, 40, [1], every=3, forward=230))))
    alone = analyze(make_trace([[list(parts) for parts in uniform(1, 40, {"forward": 60, "backward": 120})[0]]]))
    summary = summarize(analysis, [predict(analysis.facts, ["straggler=none"])], scaling(analysis, alone))
    report = json.loads(json.dumps(to_report(summary)))
    jsonschema.validate(report, SCHEMA, cls=jsonschema.Draft202012Validator)
    steps, parts = report["steps"], report["breakdown"]["mean_step_ns"]
    shown = [milliseconds(steps[f"{name}_ns"]) for name in ("mean", "median", "p95")]
    shown += [f"{steps['steps_per_second']:.3g} a second"]
    shown += [milliseconds(ns) for ns in parts.values() if ns]
    shown += [f"{ns / steps['mean_ns']:.1%}" for ns in parts.values() if ns]
    shown += [milliseconds(ns) for ns in report["breakdown"]["median_step_ns"].values() if ns]
    shown += [f"{finding['predicted_gain']:.0%}" for finding in report["findings"] if finding["predicted_gain"] >= 0.01]
    shown += [finding["sentence"] for finding in report["findings"] if finding["predicted_gain"] >= 0.01]
    shown += [f"{report['what_if'][0]['predicted_gain']:.0%}", milliseconds(report["what_if"][0]["predicted_ns"])]
    shown += [f"efficiency {report['scaling']['efficiency']:.0%}", *report["notes"]]
    assert len(report["findings"]) > 0
    assert len(report["notes"]) > 1

    for name, text in views(analysis, summary).items():
        squeezed = " ".join(text.split())
        missing = [number for number in shown if " ".join(number.split()) not in squeezed]
        assert missing == [], name


def test_parts_sum_to_the_mean_and_to_the_median() -> None:
    """Exactly, in every view that has them."""
    report = to_report(summarize(analyze(make_trace(with_stalls()))))
    breakdown, steps = report["breakdown"], report["steps"]

    assert sum(breakdown["mean_step_ns"].values()) == steps["mean_ns"]
    assert sum(breakdown["median_step_ns"].values()) == steps["median_ns"]
    assert breakdown["median_step_ns"]["checkpoint"] == 0
    assert breakdown["mean_step_ns"]["checkpoint"] == pytest.approx(1.5e9 * 6 / 60, rel=1e-6)
    assert steps["max_ns"] == pytest.approx(1597.5e6)
    assert steps["steps_per_second"] == pytest.approx(1e9 / steps["mean_ns"], rel=1e-6)
    assert sum(ns > 0 for ns in steps["checkpoint_ns"]) == 6


@given(st.integers(1, 4), st.integers(0, 7), st.data())
def test_the_typical_parts_of_each_rank_are_those_that_it_has_alone(
    ranks: int, steps: int, data: st.DataObject
) -> None:
    """They are found for a thousand ranks at once: means between the quartiles, which sum to the median step."""
    lengths = st.lists(st.integers(0, 10**9), min_size=ranks * steps, max_size=ranks * steps)
    parts = {part: np.array(data.draw(lengths), np.int64).reshape(ranks, steps) for part in ("forward", "other")}
    durations = sum(parts.values(), np.zeros((ranks, steps), np.int64))
    totals = np.median(durations, axis=1).astype(np.int64) if steps else np.zeros(ranks, np.int64)
    found = typical_parts_of_each(parts, totals)

    assert found == [
        typical_parts({part: values[row] for part, values in parts.items()}, int(totals[row])) for row in range(ranks)
    ]
    for row, of_rank in enumerate(found):
        assert sum(of_rank.values()) == totals[row]
        if steps:
            low, high = np.quantile(durations[row], [0.25, 0.75])
            middle = (durations[row] >= low) & (durations[row] <= high)
            means = {part: values[row][middle if middle.any() else ...].mean() for part, values in parts.items()}
            scale = totals[row] / max(sum(means.values()), 1.0)
            assert of_rank == pytest.approx({part: mean * scale for part, mean in means.items()}, abs=2)


def test_where_mean_and_median_tell_different_stories_a_note_says_so() -> None:
    """With the figures; and nothing is said where they agree."""
    stalled = summarize(analyze(make_trace(with_stalls())))
    said = "half of the steps take up to 97.5 ms, but the mean is 248 ms: 6 of 60 steps take 1598 ms or more"

    assert said in stalled.notes
    assert not any("half of" in note for note in summarize(analyze(make_trace(uniform(2, 30, HEALTHY)))).notes)


def test_blame_and_plan_are_drawn_by_all_views() -> None:
    """Once an analysis has them."""
    analysis = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    blamed = BlameRow(
        rank=1, track="training", category="forward", name="<b>conv</b>", why="own work", mean_ns=61e6, share=0.42
    )
    planned = PlanStep(finding=analysis.verdict, step_ns=97.5e6)
    summary = replace(summarize(analysis), blame=(blamed,), plan=(planned,))
    report = to_report(summary)
    jsonschema.validate(json.loads(json.dumps(report)), SCHEMA, cls=jsonschema.Draft202012Validator)
    assert report["blame"][0]["mean_ns"] == 61_000_000
    assert report["plan"][0]["step_ns"] == 97_500_000
    for name, text in views(analysis, summary).items():
        assert "61.0 ms" in text, name
        assert "42.0%" in text, name
        assert "conv" in text, name
        assert f"{milliseconds(summary.steps.mean_ns)} → 97.5 ms" in text, name


@pytest.mark.parametrize(("share", "bar"), [(0.001, ""), (0.009, ""), (0.02, "▋"), (0.1, "███"), (0.11, "███▎")])
def test_a_bar_is_as_long_as_its_share(share: float, bar: str) -> None:
    """Eighths of a block; a part of a thousandth has none."""
    parts = {"data": 1000 * share, "forward": 1000 * (1 - share)}
    text = printed(summarize(analyze(make_trace(uniform(1, 20, parts)))))
    (line,) = [line for line in text.splitlines() if line.startswith("waiting for data")]

    assert "".join(c for c in line if c in "▏▎▍▌▋▊▉█") == bar


def test_no_color_leaves_no_escape_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even bold and dim, on what is a terminal; without it there are some."""
    path = kineto(tmp_path / "t.json", step(40), steps=20, step_ms=100)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    said = {}
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        stream = io.StringIO()
        monkeypatch.setattr("sys.stdout", stream)
        assert main([str(path)]) == 0
        said[value] = stream.getvalue()

    assert "\x1b[" in said[""]
    assert "\x1b" not in said["1"]
    assert "The mean step" in said["1"]


def test_durations_of_a_long_run_are_drawn_evenly() -> None:
    """One out of each stretch, in order, and stalls at regular intervals are in the sample as often as in the run."""
    chosen = _chosen(10 * MAX_DURATIONS)

    assert len(chosen) == MAX_DURATIONS
    assert (chosen // 10 == range(MAX_DURATIONS)).all()
    assert (chosen % 10 == 0).mean() == pytest.approx(0.1, abs=0.05)
    assert _chosen(7).tolist() == list(range(7))


def test_an_efficiency_above_one_is_no_scaling() -> None:
    """The single run is not comparable, which the report says for people and for programs."""
    analysis = analyze(make_trace(uniform(2, 20, HEALTHY)))
    slow = analyze(make_trace(uniform(1, 20, {"forward": 300})))
    summary = summarize(analysis, scaled=scaling(analysis, slow))

    assert any("the single run is not comparable" in note.lower() for note in summary.notes)
    assert to_report(summary)["scaling"]["comparable"] is False
    assert "not comparable" in printed(summary)
    fine = summarize(analysis, scaled=scaling(analysis, analyze(make_trace(uniform(1, 20, {"forward": 80})))))
    assert to_report(fine)["scaling"]["comparable"] is True
    assert not any("comparable" in note for note in fine.notes)
