"""The evidence of findings as people read it."""

from pathlib import Path

import pytest

from tlkit.collector.analysis import analyze
from tlkit.collector.reports.evidence import MAX_LISTED, evidence_rows
from tlkit.collector.reports.html import to_html
from tlkit.collector.reports.summary import summarize

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


@pytest.mark.parametrize(
    "name", sorted(path.name for path in SAMPLES.iterdir() if path.is_dir() and path.name != "garbage")
)
def test_no_value_is_raw(name: str) -> None:
    """Neither names of the machine-readable report nor lists and tables as Python writes them."""
    for finding in analyze(str(SAMPLES / name)).findings:
        rows = evidence_rows(finding.evidence)

        assert len(rows) >= 1
        for words, value in rows:
            assert "_" not in words
            assert not words.endswith((" ns", " ratio", " gbps"))
            assert not set("[]{}") & set(value), (words, value)


def test_units() -> None:
    """By the ends of names, of values within values, too."""
    evidence = {
        "bytes_per_step": 2_500_000,
        "share_of_bytes": 0.034,
        "gain_if_divided_evenly": 0.21,
        "busbw_gbps": 5.94,
        "clock_mhz": 1410.0,
        "largest_over_mean_input": 1.84321,
        "collectives_per_step": 12_345,
        "is_one_host": True,
        "waits_ratio": -0.5,
        "code": {"file": "train.py", "line": 12, "mean_ns": 1_500_000},
        "reasons": ["a", "b"],
        "missing": None,
        "library": {},
        "excess_by_category_ns": {"forward": 2_000_000, "h2d": 0},
        "root_cause": {"is": "blocked", "excess_running_ns": -300_000},
        "steps_ratio": 1.0,
        "steps": [3, 4, 5],
    }

    assert evidence_rows(evidence) == [
        ("bytes per step", "2.5 MB"),
        ("share of bytes", "3.4%"),
        ("gain if divided evenly", "21%"),
        ("busbw", "5.940 GB/s"),
        ("clock", "1,410 MHz"),
        ("largest over mean input", "1.843"),
        ("collectives per step", "12,345"),
        ("is one host", "yes"),
        ("waits", "-50%"),
        ("code, file", "train.py"),
        ("code, line", "12"),
        ("code, mean", "1.5 ms"),
        ("reasons", "a, b"),
        ("excess by category", "forward: 2.0 ms"),
        ("root cause", "blocked"),
        ("root cause, excess running", "-0.30 ms"),
        ("share of steps", "100%"),
        ("steps", "3 to 5"),
    ]


def test_long_lists_are_cut() -> None:
    (row,) = evidence_rows({"steps": list(range(0, 200, 2))})

    assert row[1].endswith(f", and {100 - MAX_LISTED} more")


def test_the_report_escapes_it() -> None:
    """Names in it come from the trace."""
    analysis = analyze(str(SAMPLES / "slow-rank"))
    analysis.findings[0].evidence["tensor"] = "<img src=x>"
    page = to_html(summarize(analysis), analysis)

    assert "&lt;img src=x&gt;" in page
    assert "<img src=x" not in page
