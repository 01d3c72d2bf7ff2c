"""The newest analyses as Prometheus reads them (text format 0.0.4)."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from ..analysis import Analysis
from ..model.breakdown import EXPOSED, IDLE, PARTS
from ..model.step_times import step_durations

#: Steps that "now" means.
_NEWEST: Final = 20
MAX_RANKS: Final = 1024

_HELP: Final = {
    "tlkit_step_seconds": "Median step of the newest steps",
    "tlkit_step_mean_seconds": "Mean step of the newest steps; its inverse is the throughput in steps a second",
    "tlkit_part_seconds": "Mean of a step's part over the newest steps, by rank",
    "tlkit_exposed_communication_ratio": "Share of the newest steps in which the training waits for communication",
    "tlkit_data_wait_ratio": "Share of the newest steps in which the training waits for data",
    "tlkit_own_work_seconds": "Mean own work of a rank in the newest steps",
    "tlkit_collective_bytes_per_step": "Bytes that a rank communicates in a step",
    "tlkit_finding_gain_ratio": "Predicted gain of each finding",
    "tlkit_straggler": "1 for ranks that other ranks wait for",
    "tlkit_counter": "Newest value of each counter that a rank records",
}


#: A longer value is cut, and ends in a digest of all of it, so that two that begin alike stay two.
MAX_LABEL: Final = 200


def label(value: object) -> str:
    """A label's value, escaped as the format wants it."""
    text = str(value).encode("utf-8", "replace").decode()
    if len(text) > MAX_LABEL:
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        text = f"{text[: MAX_LABEL - len(digest) - 1]}~{digest}"
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def to_prometheus(analyses: Mapping[str, Analysis]) -> str:
    """All runs' metrics.  No sample is there twice, for which Prometheus would refuse all: of several, the largest stays.

    Args:
        analyses: the newest analysis by run.
    """
    samples: dict[str, dict[str, float]] = {name: {} for name in _HELP}
    for run, analysis in analyses.items():
        for name, labels, value in _samples(analysis):
            if np.isfinite(value):
                shown = ",".join(f'{key}="{label(item)}"' for key, item in {"run": run, **labels}.items())
                samples[name][shown] = max(value, samples[name].get(shown, value))
    lines = []
    for name, found in samples.items():
        if found:
            lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{shown}}} {value:.9g}" for shown, value in found.items()]
    return "\n".join(lines) + "\n"


def store_metrics(nbytes: int, most_nbytes: int, waiting: int) -> str:
    """The collector's own metrics: what it keeps, what it may keep, and how many runs wait for room."""
    told = {
        "tlkit_store_bytes": ("Bytes of all runs that are kept", nbytes),
        "tlkit_store_limit_bytes": ("Bytes that may be kept (--keep-gb)", most_nbytes),
        "tlkit_store_waiting_runs": ("Runs whose senders wait because their data cannot be stored", waiting),
    }
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n" for name, (text, value) in told.items()
    )


def _samples(analysis: Analysis) -> Iterator[tuple[str, dict[str, object], float]]:
    facts = analysis.facts
    durations = step_durations(facts.steps)
    if len(durations):
        newest = slice(-_NEWEST, None)
        yield "tlkit_step_seconds", {}, float(np.median(durations[newest])) / 1e9
        yield "tlkit_step_mean_seconds", {}, float(durations[newest].mean()) / 1e9
        steps = facts.breakdown.step_ns[:, newest].sum()
        exposed = sum(facts.part(part)[:, newest].sum() for part in EXPOSED if part != IDLE)
        yield "tlkit_exposed_communication_ratio", {}, float(exposed / max(steps, 1))
        yield "tlkit_data_wait_ratio", {}, float(facts.part("data")[:, newest].sum() / max(steps, 1))
        own = facts.breakdown.own_work_ns[:, newest].mean(axis=1)
        for row, rank in enumerate(facts.ranks[:MAX_RANKS]):
            yield "tlkit_own_work_seconds", {"rank": rank}, float(own[row]) / 1e9
            for part in PARTS:
                values = facts.part(part)[row]
                if values.any():
                    yield "tlkit_part_seconds", {"rank": rank, "part": part}, float(values[newest].mean()) / 1e9
        inside = facts.in_steps(facts.collectives)
        per_step = inside["nbytes"].clip(lower=0).sum() / max(facts.steps.count * len(facts.ranks), 1)
        yield "tlkit_collective_bytes_per_step", {}, float(per_step)
    for finding in analysis.findings:
        yield "tlkit_finding_gain_ratio", {"class": finding.class_, "cause": finding.cause}, finding.predicted_gain
        if finding.class_ == "straggler":
            for rank in finding.ranks[:MAX_RANKS]:
                yield "tlkit_straggler", {"rank": rank, "cause": finding.cause}, 1.0
    counters = analysis.trace.counters
    if len(counters):
        last = counters.sort_values("ts_ns", kind="stable").groupby(["rank", "name"], observed=True)["value"].last()
        for sample in last.reset_index().to_dict("records"):
            yield "tlkit_counter", {"rank": sample["rank"], "name": sample["name"]}, float(sample["value"])
