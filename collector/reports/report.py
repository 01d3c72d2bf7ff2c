"""The machine-readable report, version 1 (`tl-analyze --json`).

Draws a `Summary`.  Other programs read it: keys may be added, none may change or go without a new version.
"""

from typing import Any, Final

import numpy as np

from ...timeline.vocabulary import Category
from ..analysis import Analysis
from ..compare.scaling import describe_scaling
from ..findings import Finding
from ..findings.places import described
from ..model.arrays import Integers
from ..predict.what_if import describe
from .device import device_record
from .summary import Summary, summarize

SCHEMA: Final = "tlkit.report/1"
#: Durations of single steps that a report holds.
MAX_DURATIONS: Final = 1000


def make_report(analysis: Analysis) -> dict[str, Any]:
    """The report of an analysis as a JSON-able dictionary.  Times in ns, bandwidths in GB/s (10^9 bytes)."""
    return to_report(summarize(analysis))


def to_report(summary: Summary) -> dict[str, Any]:
    """The report as a JSON-able dictionary.  Times in ns, bandwidths in GB/s (10^9 bytes)."""
    report = {
        "schema": SCHEMA,
        "source": _source(summary),
        "condition": summary.condition.as_dict(),
        "steps": _steps(summary),
        "breakdown": {
            "median_step_ns": {part.name: part.median_ns for part in summary.parts},
            "mean_step_ns": {part.name: part.mean_ns for part in summary.parts},
            "hidden_communication_ns": summary.hidden_median_ns,
            "hidden_communication_mean_ns": summary.hidden_mean_ns,
            "by_rank": {str(rank): parts for rank, parts in summary.by_rank_ns.items()},
        },
        "critical_path": _critical_path(summary),
        "collectives": _collectives(summary),
        "verdict": _finding(summary.verdict, full=False),
        "findings": [_finding(finding, full=True) for finding in summary.findings],
        "blame": _blame(summary),
        "code": [{"part": row.part, **described(row.place)} for row in summary.code],
        "plan": [{**_finding(step.finding, full=False), "step_ns": round(step.step_ns)} for step in summary.plan],
        "model_error_ratio": None if summary.model_error_ratio is None else round(summary.model_error_ratio, 6),
        "device": device_record(summary.device),
        "notes": list(summary.notes),
        "what_if": [describe(prediction) for prediction in summary.predictions],
    }
    if summary.scaling is not None:
        report["scaling"] = describe_scaling(summary.scaling)
    return report


def _source(summary: Summary) -> dict[str, Any]:
    meta = summary.meta
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


def _steps(summary: Summary) -> dict[str, Any]:
    times = summary.steps
    chosen = _chosen(times.count)
    return {
        "count": times.count,
        "excluded": summary.excluded,
        "median_ns": times.median_ns,
        "mean_ns": times.mean_ns,
        "p95_ns": times.p95_ns,
        "max_ns": times.max_ns,
        "steps_per_second": round(times.steps_per_second, 6),
        "durations_ns": times.durations_ns[chosen].tolist(),
        "checkpoint_ns": times.checkpoint_ns[chosen].tolist(),
        "inferred": summary.inferred,
    }


def _chosen(count: int) -> Integers:
    """Rows of the steps that a report lists: all, or of a long run one out of each of MAX_DURATIONS equal stretches.

    Which one of a stretch is drawn (the same in every report): at even distances stalls that come at regular intervals would be
    in the sample always or never.
    """
    if count <= MAX_DURATIONS:
        return np.arange(count, dtype=np.int64)
    edges = np.linspace(0, count, MAX_DURATIONS + 1).astype(np.int64)
    drawn: Integers = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    return drawn


def _critical_path(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "rank": row.rank,
            "part": row.part,
            "mean_ns": round(row.mean_ns),
            "share": round(row.share, 4),
            "steps_ratio": round(row.steps_ratio, 4),
        }
        for row in summary.path
    ]


def _collectives(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "kind": row.kind,
            "bytes": row.nbytes,
            "count": row.count,
            "median_ns": round(row.median_ns),
            "wait_ns": round(row.wait_ns),
            "transfer_ns": round(row.transfer_ns),
            "algbw_gbps": round(row.algbw_gbps, 6),
            "busbw_gbps": round(row.busbw_gbps, 6),
            "process_set": row.process_set,
            "tensors": round(row.tensors, 1),
        }
        for row in summary.collectives
    ]


def _blame(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "rank": row.rank,
            "track": row.track,
            "category": row.category,
            "name": row.name,
            "why": row.why,
            "mean_ns": round(row.mean_ns),
            "share": round(row.share, 4),
        }
        for row in summary.blame
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
