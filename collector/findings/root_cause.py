"""Why one rank's phases take longer than the others': more input, no core, blocked, or a slower processor."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.model.step_loads import METERED
from ...timeline.model.trace import by_rank
from ...timeline.vocabulary import GPU_CLOCK, GPU_REASON, GPU_THROTTLED, LaneKind
from ..facts import Facts
from ..model.arrays import Mask
from ..model.intervals import of_spans, total_within
from .base import FIND_THREAD, SHOWS_LINE
from .costly_settings import names_of, remedy_of, settings_of_one

#: The cause has to explain this much of the excess.
EXPLAINS: Final = 0.5
#: A rank that has this much more input than the others has uneven batches.
MORE_INPUT_RATIO: Final = 1.04

#: A clock this much lower than the others' is throttled.
THROTTLED_RATIO: Final = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class RootCause:
    """What lies behind a rank's longer work."""

    slug: str
    """`throttled-device`, `slow-device`, `uneven-batches`, `starved-of-cores`, `held-by-another-thread`, `blocked`,
    `costly-settings`, `slow-processor`; empty if the trace does not tell.
    """
    sentence: str
    remedy: str
    evidence: dict[str, Any]


UNKNOWN: Final = RootCause(slug="", sentence="", remedy="", evidence={})
#: They say that a rank computes more, not why.
_WITHOUT_REASON: Final = frozenset({"", "slow-processor"})


def root_cause(facts: Facts, row: int, slow: Mask, excess_ns: float) -> RootCause:
    """Compare a rank with the median of the others, over the steps `slow`.

    Args:
        excess_ns: how much longer it works in them, on average.
    """
    found = (
        _throttled(facts, row, slow)
        or _of_device(facts, row, slow, excess_ns)
        or _of_processor(facts, row, slow, excess_ns)
    )
    settings = settings_of_one(facts, row) if found.slug in _WITHOUT_REASON else []
    if not settings:
        return found
    return RootCause(
        slug="costly-settings",
        sentence=f"it has {names_of(settings)}",
        remedy=f"{remedy_of(settings)}.",
        evidence=found.evidence | {"on": [str(one) for one in settings]},
    )


def _of_processor(facts: Facts, row: int, slow: Mask, excess_ns: float) -> RootCause:  # noqa: PLR0911  a cause each
    """What the training thread did with the time."""
    cpu = facts.cpu
    if cpu.is_estimated and excess_ns > 0:
        return _by_operators(facts, row, slow, excess_ns)
    if not cpu.is_known or excess_ns <= 0:
        return UNKNOWN

    metered = [part for part in map(str, METERED[1:]) if part in cpu.metered]

    def excess_of(tables: dict[str, np.ndarray]) -> float:
        total = np.sum([tables[part] for part in metered], axis=0)[:, slow].mean(axis=1)
        return float(total[row] - np.median(np.delete(total, row)))

    if excess_of(facts.breakdown.parts_ns) < EXPLAINS * excess_ns:
        return UNKNOWN  # it lies in a part whose running time was not recorded
    running_ns, starved_ns = excess_of(cpu.running_ns), excess_of(cpu.starved_ns) if cpu.knows_starved else 0.0
    blocked_ns = excess_ns - running_ns - starved_ns
    if facts.all_starved:
        # What waits for cores by chance is no part of the excess: the rest of the waiting is due to what it runs more.
        running_ns, starved_ns = running_ns + max(starved_ns, 0.0), min(starved_ns, 0.0)
    as_others_ns = float(np.clip(running_ns * _lack_of_others(facts, row, slow, metered), 0.0, max(starved_ns, 0.0)))
    running_ns, starved_ns = running_ns + as_others_ns, starved_ns - as_others_ns
    other_threads_ns = _other_threads_ns(facts, row, slow)
    elements = cpu.input_elements[:, slow].mean(axis=1)
    others = float(np.median(np.delete(elements, row)))
    evidence: dict[str, Any] = {
        "excess_running_ns": round(running_ns),
        "excess_starved_ns": round(starved_ns),
        "excess_blocked_ns": round(blocked_ns),
        "excess_of_other_threads_ns": round(other_threads_ns),
        "input_elements": round(float(elements[row])),
        "input_elements_of_others": round(others),
    }
    if others > 0 and elements[row] > MORE_INPUT_RATIO * others and running_ns > EXPLAINS * excess_ns:
        times = elements[row] / others
        return RootCause(
            slug="uneven-batches",
            sentence=f"its batches are {times:.1f} times as large as the others'",
            remedy=(
                "give all ranks batches of equal work: a sampler that divides by length or size, bucketing, "
                "DistributedSampler(drop_last=True)."
            ),
            evidence=evidence,
        )
    lost_ns = starved_ns + blocked_ns
    if lost_ns > EXPLAINS * excess_ns and other_threads_ns > EXPLAINS * lost_ns:
        return RootCause(
            slug="held-by-another-thread",
            sentence=(
                "held up there while another thread of its own process computes (Python's interpreter lock, a lock of its own, "
                "or the core)"
            ),
            remedy=(
                f"{FIND_THREAD}move what it does into a process of its own (multiprocessing, a loader worker), or into code that "
                "releases the interpreter's lock."
            ),
            evidence=evidence,
        )
    if starved_ns > EXPLAINS * excess_ns:
        return _starved(evidence)
    if blocked_ns > EXPLAINS * excess_ns:
        return RootCause(
            slug="blocked",
            sentence="blocked there (asleep, or waiting for a disk, a lock or another thread), not computing",
            remedy=(
                f"find what it waits for{SHOWS_LINE}: a sleep or retry, a lock, a file or the network, more OMP threads than it "
                "has cores."
            ),
            evidence=evidence,
        )
    if running_ns > EXPLAINS * excess_ns:
        return RootCause(
            slug="slow-processor",
            sentence="computing more, or on a slower core, from input of the same size",
            remedy=(
                "compare its cores with the others' (lscpu, frequency, heat, a shared socket), and look for work that it alone "
                "does there."
            ),
            evidence=evidence,
        )
    return RootCause(slug="", sentence="", remedy="", evidence=evidence)


def _starved(evidence: dict[str, Any]) -> RootCause:
    return RootCause(
        slug="starved-of-cores",
        sentence="waiting for a core that something else uses",
        remedy=(
            "look with top for what else runs on its cores, and end or move it; bind the rank to cores of its own "
            "(HOROVOD_THREAD_AFFINITY, numactl, a cpuset)."
        ),
        evidence=evidence,
    )


def _by_operators(facts: Facts, row: int, slow: Mask, excess_ns: float) -> RootCause:
    """Where nothing but its operators tells how long a rank waits for cores (lost_cores), and nothing what it runs."""
    starved = np.sum([facts.cpu.starved_ns[part] for part in facts.cpu.starved_parts], axis=0)[:, slow].mean(axis=1)
    starved_ns = float(starved[row] - np.median(np.delete(starved, row)))
    return _starved({"excess_starved_ns": round(starved_ns)}) if starved_ns > EXPLAINS * excess_ns else UNKNOWN


def _lack_of_others(facts: Facts, row: int, slow: Mask, metered: list[str]) -> float:
    """How long the other ranks wait for a core for each nanosecond that they run (median).

    On a loaded host a rank that computes more waits for cores in the same proportion: that it waits longer is then not why it is
    slow.
    """
    if not facts.cpu.knows_starved or not metered:
        return 0.0
    starved = np.sum([facts.cpu.starved_ns[part] for part in metered], axis=0)[:, slow].sum(axis=1)
    running = np.sum([facts.cpu.running_ns[part] for part in metered], axis=0)[:, slow].sum(axis=1)
    return float(np.median(np.delete(starved / np.maximum(running, 1), row)))


def _other_threads_ns(facts: Facts, row: int, slow: Mask) -> float:
    """How much more than on the other ranks the other threads of the process run in a step (ns)."""
    cpu = facts.cpu
    if not cpu.process_ns.any():
        return 0.0
    own = np.sum([cpu.running_ns[str(category)] for category in METERED], axis=0)
    others = (cpu.process_ns - own)[:, slow].mean(axis=1)
    return float(others[row] - np.median(np.delete(others, row)))


def _of_device(facts: Facts, row: int, slow: Mask, excess_ns: float) -> RootCause | None:
    """Whether the device takes longer while the host hands out its work as quickly as elsewhere; None without a device."""
    if not facts.breakdown.on_device or excess_ns <= 0:
        return None
    spans = by_rank(facts.trace.spans)
    host_ns = []
    for rank, starts, ends in zip(facts.ranks, facts.steps.start_ns, facts.steps.end_ns, strict=True):
        own = spans.get(rank, facts.trace.spans.iloc[:0])
        phases = own[(own["lane_kind"] == str(LaneKind.HOST)) & own["category"].isin([str(part) for part in METERED])]
        host_ns.append(float(total_within(of_spans(phases), starts[slow], ends[slow]).mean()))
    if not any(host_ns):
        return None  # a format that does not show what the host is about
    longer_ns = host_ns[row] - float(np.median(np.delete(host_ns, row)))
    if longer_ns > EXPLAINS * excess_ns:
        return None
    return RootCause(
        slug="slow-device",
        sentence="its device takes longer for it, while its host hands out the work as quickly as elsewhere",
        remedy=(
            "compare its kernels with another rank's (torch.profiler on both), its clocks and memory (nvidia-smi -q), what else "
            "runs on that device, and whether its batches are larger."
        ),
        evidence={"excess_of_host_ns": round(longer_ns)},
    )


def _throttled(facts: Facts, row: int, slow: Mask) -> RootCause | None:
    """Whether the rank's device runs at a clearly lower clock than the others' in the slow steps.

    That it notes a reason for its clock means nothing by itself: at its power cap every busy device does.
    """
    counters = facts.trace.counters
    clocks = counters[counters["name"] == GPU_CLOCK]
    rank = facts.ranks[row]
    if not (clocks["rank"] == rank).any() or clocks["rank"].nunique() < 2:  # noqa: PLR2004  nothing to compare with
        return None
    starts, ends = facts.steps.start_ns[row][slow], facts.steps.end_ns[row][slow]
    at_ns = clocks["ts_ns"].to_numpy()
    step = np.searchsorted(starts, at_ns, side="right") - 1
    in_slow = (step >= 0) & (at_ns < ends[np.maximum(step, 0)])
    meant = clocks[in_slow]
    if not (meant["rank"] == rank).any() or meant["rank"].nunique() < 2:  # noqa: PLR2004  as above
        meant = clocks  # steps shorter than the time between two samples
    means = meant.groupby("rank")["value"].mean()
    mine, others = float(means[rank]), float(means.drop(rank).median())
    if mine > THROTTLED_RATIO * others:
        return None
    noted = counters[(counters["name"] == GPU_THROTTLED) & (counters["rank"] == rank)]["value"]
    reasons = _reasons(counters[(counters["rank"] == rank) & (counters["value"] > 0)])
    slowed = f" (slowed by {' and '.join(reasons)})" if reasons else ""
    return RootCause(
        slug="throttled-device",
        sentence=f"its device runs at {mine:.0f} MHz{slowed}, the others' at {others:.0f}",
        remedy=(
            "look at the device (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER): heat, a power cap, another job on it; until "
            "then leave the host out."
        ),
        evidence={
            "clock_mhz": round(mine),
            "clock_of_others_mhz": round(others),
            "throttled_ratio": round(float(noted.mean()), 3) if len(noted) else 0.0,
            "reasons": reasons,
        },
    )


def _reasons(counters: pd.DataFrame) -> list[str]:
    """What slows a device, the commonest first, of the counters that say so."""
    names = counters["name"].astype(str)
    counted = names[names.str.startswith(GPU_REASON)].value_counts()
    return [str(name).removeprefix(GPU_REASON) for name in counted.index]
