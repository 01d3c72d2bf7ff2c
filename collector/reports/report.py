"""The machine-readable report, version 1 (`tl-analyze --json`).

Other programs read it: keys may be added, none may change or go without a new version.
"""

from typing import Any, Final

import numpy as np

from ...timeline.vocabulary import Category
from ..analysis import Analysis
from ..findings import Finding
from ..model.breakdown import PARTS, typical_parts

SCHEMA: Final = "tlkit.report/1"
#: Durations of single steps that a report holds.
MOST_DURATIONS: Final = 1000


def make_report(analysis: Analysis) -> dict[str, Any]:
    """The report as a JSON-able dictionary.  Times in ns, bandwidths in GB/s (10^9 bytes)."""
    return {
        "schema": SCHEMA,
        "source": _source(analysis),
        "steps": _steps(analysis),
        "breakdown": _breakdown(analysis),
        "critical_path": _critical_path(analysis),
        "collectives": _collectives(analysis),
        "verdict": _finding(analysis.verdict, full=False),
        "findings": [_finding(finding, full=True) for finding in analysis.findings],
        "notes": list(analysis.notes),
    }


def _source(analysis: Analysis) -> dict[str, Any]:
    meta = analysis.trace.meta
    return {
        "files": list(meta.files),
        "format": meta.format,
        "ranks": list(meta.ranks),
        "size": meta.size,
        "events": meta.events,
        "dropped": dict(meta.dropped),
        "clock": {"method": meta.clock.method, "uncertainty_ns": meta.clock.uncertainty_ns},
        "known_categories": [str(category) for category in Category if category in meta.known_categories],
        "hosts": {str(rank): host for rank, host in meta.hosts.items()},
    }


def step_durations(analysis: Analysis) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Duration of each analysed step: the median over ranks, in ns."""
    durations = analysis.facts.steps.duration_ns
    if not durations.size:
        return np.empty(0, dtype=np.int64)
    typical: np.ndarray[tuple[int], np.dtype[np.int64]] = np.rint(np.median(durations, axis=0)).astype(np.int64)
    return typical


def _steps(analysis: Analysis) -> dict[str, Any]:
    durations, steps = step_durations(analysis), analysis.facts.steps
    known = len(durations) > 0
    return {
        "count": len(durations),
        "excluded": steps.excluded,
        "median_ns": int(np.median(durations)) if known else 0,
        "mean_ns": round(float(durations.mean())) if known else 0,
        "p95_ns": int(np.quantile(durations, 0.95)) if known else 0,
        "durations_ns": _thinned(durations),
        "inferred": steps.inferred,
    }


def _thinned(durations: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """The durations in order; of a long run evenly spaced ones."""
    chosen = np.linspace(0, len(durations) - 1, min(len(durations), MOST_DURATIONS)).round().astype(int)
    thinned: list[int] = durations[chosen].tolist()
    return thinned


def typical_step(analysis: Analysis, row: int | None = None) -> dict[str, int]:
    """Parts of the median step, in ns, of all ranks together or of the rank in row `row`; they sum to that step."""
    parts = analysis.facts.breakdown.parts_ns
    durations = analysis.facts.steps.duration_ns
    if not durations.size:
        return dict.fromkeys(PARTS, 0)
    if row is None:
        return typical_parts(dict(parts), int(np.median(step_durations(analysis))))
    return typical_parts({name: values[row] for name, values in parts.items()}, int(np.median(durations[row])))


def _breakdown(analysis: Analysis) -> dict[str, Any]:
    hidden = analysis.facts.breakdown.hidden_ns
    return {
        "median_step_ns": typical_step(analysis),
        "hidden_communication_ns": int(np.median(hidden)) if hidden.size else 0,
        "by_rank": {str(rank): typical_step(analysis, row) for row, rank in enumerate(analysis.facts.ranks)},
    }


def _critical_path(analysis: Analysis) -> list[dict[str, Any]]:
    rows: list[dict[Any, Any]] = analysis.critical_path.to_dict("records")
    return [
        {
            "rank": int(row["rank"]),
            "part": str(row["part"]),
            "mean_ns": round(row["mean_ns"]),
            "share": round(float(row["share"]), 4),
            "steps_ratio": round(float(row["steps_ratio"]), 4),
        }
        for row in rows
    ]


def _collectives(analysis: Analysis) -> list[dict[str, Any]]:
    rows: list[dict[Any, Any]] = analysis.collectives.to_dict("records")
    return [
        {
            "kind": str(row["kind"]),
            "bytes": int(row["bytes"]),
            "count": int(row["count"]),
            "median_ns": round(row["median_ns"]),
            "wait_ns": round(row["wait_ns"]),
            "transfer_ns": round(row["transfer_ns"]),
            "algbw_gbps": round(float(row["algbw_gbps"]), 6),
            "busbw_gbps": round(float(row["busbw_gbps"]), 6),
            "process_set": int(row["process_set"]),
            "tensors": round(float(row["tensors"]), 1),
        }
        for row in rows
    ]


def _finding(finding: Finding, *, full: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "class": finding.class_,
        "cause": finding.cause,
        "ranks": list(finding.ranks),
        "predicted_gain": round(finding.predicted_gain, 4),
        "confidence": round(finding.confidence, 3),
        "sentence": finding.sentence,
        "remedy": finding.remedy,
    }
    if full:
        described["gain_interval"] = [round(bound, 4) for bound in finding.gain_interval]
        described["evidence"] = finding.evidence
    return described
