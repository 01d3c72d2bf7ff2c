"""The training waits for data."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import COLLATE, DATA_FETCH, DATA_WAIT, DATASET, WORKER_START, Category, LaneKind
from ..facts import Facts
from ..model.arrays import Floats, Mask
from ..model.breakdown import EXPOSED, PARTS
from ..model.pattern import Pattern, find_pattern
from ..model.stages import Pipeline, describe, find_pipeline, has_pipeline
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding, promise
from .cores import MOST_OF_IT, loaders_share, with_cores
from .framework_words import Advice, advise, is_torch
from .pipeline_cores import cores_sentence, freed_share, made_ns, pipelines_of, ran_beyond_ns, with_freed
from .stages import stage_remedy, stage_sentence

#: Ranks whose workers need this share of the others' time for a batch are as slow.
ALIKE: Final = 0.8
#: Waits shorter than this share of the step are the price of asking.
MIN_RATIO: Final = 0.02
#: Ranks with this share of the longest wait, beyond that of the quickest rank, are slow, too.
ALSO_SLOW: Final = 0.2
#: What it costs to be handed batches by workers that keep up: no setting takes that away.
HAND_OVER_RATIO: Final = 0.05
#: A batch that is waited for no longer than this costs as much to hand over from a worker, and is not slow to make.  Measured:
#: 0.3 ms a batch made in the loop, 1.7 ms handed over by a worker, two ranks on two cores.
HAND_OVER_NS: Final = 5e5
#: Of the wait for a tf.data pipeline so much has to be hidden by making batches ahead, or the cores for that are not there.
MIN_HIDDEN_RATIO: Final = 0.3
#: A pipeline that works for less than this share of the waits for its batches is not what they are due to.
MIN_WORKED_RATIO: Final = 0.5
#: Ranks whose longest wait in a step is so many times their mean wait do not wait alike.
MUCH_LONGER: Final = 1.2
#: Stages that a report names.
MAX_STAGES: Final = 8
#: So many times what starting workers costs the ranks in the same step is not due to it.
MUCH_MORE: Final = 1.5


class SlowLoader:
    """The loader does not keep up, on all ranks or on some."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding for all ranks at fault."""
        waits_ns = facts.part(str(Category.DATA))
        if facts.replay is None:
            return []
        mean_by_rank = waits_ns.mean(axis=1)
        step_ns = facts.mean_step_ns
        beyond = mean_by_rank - mean_by_rank.min()
        # What is left of the waits when the slowest ranks no longer wait is the next ones'.
        also = (beyond >= ALSO_SLOW * beyond.max()) & (beyond >= MIN_RATIO * step_ns)
        guilty = (mean_by_rank >= 0.5 * mean_by_rank.max()) | also | _cannot_keep_up(facts)
        if facts.breakdown.on_device:
            asked = _asked_ns(facts)
            guilty |= (asked >= 0.5 * np.median(asked[guilty])) & (mean_by_rank >= MIN_RATIO * step_ns)
        guilty = _with_their_like(facts, guilty)
        ranks = tuple(rank for rank, bad in zip(facts.ranks, guilty, strict=True) if bad)
        wait_ns, batches = float(mean_by_rank[guilty].mean()), _batches_of_a_step(facts)
        counted = pipelines_of(facts)
        worked_ns = made_ns(facts, counted, batches)
        takes_cores = freed_share(facts, worked_ns, guilty)
        if wait_ns < HAND_OVER_NS * batches and takes_cores < WORTH_RATIO:
            return []
        made = how_batches_are_made(facts, ranks)
        made["how"] = _how_it_is_spent(facts, guilty) if not made["workers"] else ""
        workers = int(made["workers"])
        outcome = facts.outcome(_without_waits(facts, guilty))
        can_keep_up = 0 < _workers_needed(made, step_ns, wait_ns) <= workers
        made["cores_share"] = 0.0 if can_keep_up or not workers else round(loaders_share(facts), 2)
        if can_keep_up:
            outcome = facts.outcome_of(outcome.saved_ns - HAND_OVER_RATIO * step_ns, outcome.change)
        elif made["cores_share"] >= MOST_OF_IT:
            # More workers would take cores from the ranks: what is promised is less work for those that there are.
            cores, _ = with_cores(facts, made["cores_share"])
            outcome = outcome if cores is None else facts.outcome(outcome.change & cores)
        pipeline = _slowest_pipeline(facts, ranks) or _slowest(counted, guilty)
        if pipeline is not None and pipeline.work_ns < MIN_WORKED_RATIO * wait_ns / batches:
            return []  # batches are there: what is waited for is a core to hand them over
        if pipeline is None:
            remedy = loader_remedy(facts, made, step_ns, wait_ns)
        else:
            overlapped_ns = _overlapped_ns(facts, pipeline.work_ns * batches, pipeline.cores, step_ns, wait_ns)
            hidden = (step_ns - overlapped_ns) / max(float(outcome.saved_ns.mean()), 1.0)
            can_overlap = hidden > MIN_HIDDEN_RATIO
            cheaper = facts.outcome(outcome.change & with_freed(facts, takes_cores)) if takes_cores else outcome
            if can_overlap:
                outcome = facts.outcome_of(outcome.saved_ns * min(hidden, 1.0), outcome.change)
            if takes_cores and cheaper.gain > outcome.gain:
                outcome = cheaper
            remedy = stage_remedy(pipeline, can_overlap=can_overlap)
        if outcome.gain < MIN_RATIO:
            return []
        pattern = find_pattern(_long_waits(waits_ns[guilty].max(axis=0)), facts.steps.numbers)
        evidence: dict[str, Any] = {
            "mean_wait_ns": round(wait_ns),
            "mean_wait_by_rank_ns": {str(r): round(v) for r, v in zip(facts.ranks, mean_by_rank, strict=True)},
            "pattern": pattern.kind,
            **pattern.evidence,
            **made,
            **({"stages": describe(pipeline.stages[:MAX_STAGES])} if pipeline is not None else {}),
        }
        every = len(ranks) == len(facts.ranks) or facts.trace.meta.size <= 1
        # The longest wait of each step is the job's.
        longest_ns = float(waits_ns[guilty].max(axis=0).mean())
        alike = longest_ns <= MUCH_LONGER * wait_ns
        sentence = _sentence(
            facts,
            ranks,
            made,
            pattern,
            milliseconds(wait_ns) if alike else f"up to {milliseconds(longest_ns)}",
            pipeline,
        ) + ("" if pipeline is None else cores_sentence(takes_cores, pipeline))
        return [
            promise(
                outcome,
                class_="data",
                cause="slow-loader" if every else "slow-loader-on-some-ranks",
                ranks=ranks,
                confidence=0.95 if pattern.kind == "always" else 0.85,
                evidence=evidence,
                remedy=remedy,
                sentence=sentence,
            )
        ]


def _sentence(
    facts: Facts,
    ranks: Sequence[int],
    made: dict[str, Any],
    pattern: Pattern,
    how_long: str,
    pipeline: Pipeline | None,
) -> str:
    size = max(facts.trace.meta.size, 1)
    who = name_ranks(ranks, len(facts.ranks) if len(ranks) == len(facts.ranks) else size)
    every = len(ranks) == len(facts.ranks) or size == 1
    verb = "waits" if len(ranks) == 1 or who == "Every rank" else "wait"
    if pipeline is not None:
        where = stage_sentence(pipeline)
    else:
        where = f", which spends its time {made['slow_part']}{made['how']}" if made["slow_part"] else ""
    return (
        f"{who} {verb} {how_long} of each {milliseconds(facts.mean_step_ns)} step for the data loader"
        + ("" if pattern.kind == "always" else f" ({pattern.words})")
        + where
        + ("." if every else ", and the other ranks wait for them.")
    )


def _batches_of_a_step(facts: Facts) -> float:
    """How many batches a rank asks for in a step, at least one: gradients are added up, or a call trains on several."""
    spans = facts.trace.spans
    asked = facts.in_steps(spans[spans["name"] == DATA_WAIT])
    return max(len(asked) / max(facts.steps.count * len(facts.ranks), 1), 1.0)


def _how_it_is_spent(facts: Facts, guilty: np.ndarray) -> str:
    """Whether loading in the training thread computes or waits."""
    data = str(Category.DATA)
    if not facts.cpu.is_known:
        return ""
    running = float(facts.cpu.running_ns[data][guilty].sum()) / max(float(facts.part(data)[guilty].sum()), 1.0)
    if running > 0.7:  # noqa: PLR2004  most of it
        return ", computing"
    return ", waiting (for a disk, the network, a lock)" if running < 0.3 else ""  # noqa: PLR2004


def _cannot_keep_up(facts: Facts) -> np.ndarray:
    """Ranks whose workers are about as slow as the slowest rank's: the others' waits hide theirs.  bool[rank]."""
    needed = needed_ns(facts)
    slow: np.ndarray = (needed > ALIKE * needed.max()) & (needed > ALIKE * facts.mean_step_ns)
    return slow


def _without_waits(facts: Facts, guilty: Mask) -> Change:
    """Batches of some ranks that are there when they are asked for."""
    kept = np.where(guilty, 0.0, 1.0)[:, None]
    return Change(work={str(Category.DATA): kept}, loading=np.broadcast_to(kept, (len(facts.ranks), facts.steps.count)))


def _with_their_like(facts: Facts, guilty: Mask) -> Mask:
    """With those whose workers take about as long for a batch, if the ranks at fault would wait for them in turn.

    The rank whose batch comes last waits for it alone; that the others' came a little earlier, and all wait then for the last
    rank's gradients, makes them no quicker.
    """
    needed = needed_ns(facts)
    alike = guilty | ((needed > 0) & (needed >= ALIKE * float(np.median(needed[guilty]))))
    if alike.sum() == guilty.sum():
        return guilty
    some, all_of_them = (facts.outcome(_without_waits(facts, ranks)).gain for ranks in (guilty, alike))
    return alike if all_of_them > MUCH_MORE * some + WORTH_RATIO else guilty


def needed_ns(facts: Facts) -> Floats:
    """How long the workers of each rank together need for a batch (median), 0 without workers: float[rank], ns."""
    spans = facts.trace.spans
    made = spans[(spans["name"] == DATA_FETCH) & (spans["lane_kind"] == str(LaneKind.WORKER))]
    needed = np.zeros(len(facts.ranks))
    row_of = {rank: row for row, rank in enumerate(facts.ranks)}
    for rank, mine in made[made["rank"].isin(facts.ranks)].groupby("rank"):
        needed[row_of[int(str(rank))]] = float(mine["dur_ns"].median()) / mine["lane"].nunique()
    return needed


def _asked_ns(facts: Facts) -> Floats:
    """How long the host of each rank waits for batches: float[rank], mean of a step, ns.

    Which of several devices stands still meanwhile, and which waits for that one in a collective, is chance.
    """
    spans = facts.trace.spans
    # Those first: of ten million spans, which are in a step takes a fifth of the analysis.
    loading = facts.in_steps(spans[spans["lane_kind"] == str(LaneKind.DATA)])
    mine = loading.groupby("rank", observed=True)["dur_ns"].sum()
    waited: Floats = mine.reindex(list(facts.ranks)).fillna(0).to_numpy(dtype=np.float64) / max(facts.steps.count, 1)
    return waited


def _long_waits(waits_ns: np.ndarray) -> np.ndarray:
    """The waits that matter: those of at least a third of the mean."""
    return np.where(waits_ns >= waits_ns.mean() / 3, waits_ns, 0.0)


class WorkerStartUp:
    """Every epoch starts its workers anew."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, for the ranks that start workers within the analysed steps."""
        spans = facts.trace.spans
        starts = facts.in_steps(spans[spans["name"] == WORKER_START])
        if facts.replay is None or starts.empty:
            return []
        own = facts.breakdown.own_work_ns.astype(float) - facts.part(str(Category.CHECKPOINT))
        cost_ns = np.zeros(own.shape)
        for row, rank in enumerate(facts.ranks):
            began = starts.loc[starts["rank"] == rank, "start_ns"].to_numpy()
            columns = np.unique(np.searchsorted(facts.steps.start_ns[row], began, side="right") - 1)
            others = np.delete(own[row], columns)
            if len(others):
                # Old workers are ended, new ones forked, their first batch waited for, and the memory that they share copied
                # page by page: such a step is longer in every part.
                cost_ns[row, columns] = np.maximum(own[row, columns] - np.median(others), 0.0)
        # What only some of the ranks that start workers take longer is theirs.
        starting = np.where(cost_ns > 0, cost_ns, np.nan)
        hit = (cost_ns > 0).any(axis=0)
        cost_ns[:, hit] = np.minimum(cost_ns[:, hit], MUCH_MORE * np.nanmedian(starting[:, hit], axis=0))
        factor = removed(own, cost_ns)
        parts = [name for name in PARTS if name not in EXPOSED and name != str(Category.CHECKPOINT)]
        outcome = facts.outcome(Change(work=dict.fromkeys(parts, factor), loading=np.where(cost_ns > 0, 0.0, 1.0)))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        ranks = tuple(rank for rank, row in zip(facts.ranks, cost_ns, strict=True) if row.any())
        each_ns = float(cost_ns.sum()) / len(starts)
        return [
            promise(
                outcome,
                class_="data",
                cause="worker-start-up",
                ranks=ranks,
                confidence=0.85,
                evidence={
                    "starts": len(starts),
                    "mean_start_ns": round(float(starts["dur_ns"].mean())),
                    "mean_cost_ns": round(each_ns),
                },
                remedy=advise(facts, Advice.PERSISTENT_WORKERS),
                sentence=(
                    f"The loader's workers start anew {len(starts) / len(ranks):.0f} times in {facts.steps.count} steps, and "
                    f"each time the training waits {milliseconds(each_ns)} for them."
                ),
            )
        ]


def how_batches_are_made(facts: Facts, ranks: Sequence[int]) -> dict[str, Any]:
    """Workers, and the time that one batch takes, by part."""
    spans = facts.trace.spans
    mine = spans[spans["rank"].isin(ranks)]
    fetched = mine[mine["lane_kind"].isin([str(LaneKind.DATA), str(LaneKind.WORKER)])]

    def median_ns(name: str) -> float:
        durations = fetched.loc[fetched["name"] == name, "dur_ns"]
        return float(durations.median()) if len(durations) else 0.0

    fetch_ns, dataset_ns, collate_ns = median_ns(DATA_FETCH), median_ns(DATASET), median_ns(COLLATE)
    slow_part = ""
    if fetch_ns:
        slow_part = "in the dataset (reading and transforming)" if dataset_ns >= collate_ns else "in collate_fn"
    return {
        "workers": _workers(facts, mine),
        "fetch_ns": round(fetch_ns),
        "dataset_ns": round(dataset_ns),
        "collate_ns": round(collate_ns),
        "slow_part": slow_part,
    }


def _workers(facts: Facts, spans: pd.DataFrame) -> int:
    lanes = spans.loc[spans["lane_kind"] == str(LaneKind.WORKER), ["rank", "lane"]].drop_duplicates()
    if len(lanes):
        return int(lanes.groupby("rank", observed=True).size().max())
    waits = spans.loc[(spans["name"] == DATA_WAIT) & (spans["args_row"] >= 0), "args_row"]
    return 0 if len(waits) == 0 else int(_workers_in(facts.trace.raw_args[int(waits.iloc[-1])]))


def _workers_in(args: bytes) -> int:
    _, _, rest = args.partition(b'"workers":')
    digits = rest.lstrip()[:6]
    number = digits[: len(digits) - len(digits.lstrip(b"0123456789"))]
    return int(number or 0)


def _workers_needed(made: dict[str, Any], step_ns: float, wait_ns: float) -> int:
    """Workers that make batches as fast as they are used up, with some room; 0 if the trace does not say how long one takes."""
    fetch_ns = float(made["fetch_ns"])
    return max(1, math.ceil(fetch_ns / max(step_ns - wait_ns, 1.0) * 1.2)) if fetch_ns else 0


def _slowest_pipeline(facts: Facts, ranks: Sequence[int]) -> Pipeline | None:
    """The tf.data pipeline of the rank where it has most to do; None where the trace shows none."""
    if not has_pipeline(facts.trace):
        return None
    spans = facts.in_steps(facts.trace.spans)
    found = [find_pipeline(facts.trace, spans[spans["rank"] == rank]) for rank in ranks]
    return max((pipeline for pipeline in found if pipeline is not None), key=lambda made: made.work_ns, default=None)


def _slowest(counted: dict[int, Pipeline], rows: Mask) -> Pipeline | None:
    """Of what was counted of some ranks' pipelines the one that has most to do."""
    return max(
        (pipeline for row, pipeline in counted.items() if rows[row]), key=lambda made: made.work_ns, default=None
    )


def _overlapped_ns(facts: Facts, work_ns: float, cores_told: int, step_ns: float, wait_ns: float) -> float:
    """How long a step takes if batches are made while the training computes: cores do only so much at a time.

    Args:
        work_ns: of the pipeline for a step.
        cores_told: that it may use; 0 if unknown, and its work is counted by the clock, waits for disks and for cores included.
    """
    busy_ns = step_ns - wait_ns
    on_host_ns = 0.0 if facts.breakdown.on_device else busy_ns
    if cores_told:
        return max(busy_ns, (work_ns + on_host_ns) / cores_told)
    load, beyond_ns = facts.host_load, ran_beyond_ns(facts)
    ran_ns = work_ns if beyond_ns is None else min(work_ns, float(beyond_ns.max()))
    cores = 1 if load is None or load.cores_per_rank is None else max(load.cores_per_rank, 1)
    return max(busy_ns, (ran_ns + on_host_ns) / cores)


def loader_remedy(facts: Facts, made: dict[str, Any], step_ns: float, wait_ns: float) -> str:
    """What to change of a loader that makes batches like this, for steps that wait so long for it."""
    fetch_ns, workers = float(made["fetch_ns"]), int(made["workers"])
    busy_ns = max(step_ns - wait_ns, 1.0)
    if not fetch_ns or not is_torch(facts):
        return advise(facts, Advice.FASTER_LOADER)
    where = "dataset's __getitem__ (caching, cheaper decoding, fewer transforms)"
    if made["slow_part"] == "in collate_fn":
        where = "collate_fn"
    needed = _workers_needed(made, step_ns, wait_ns)
    if workers == 0:
        return (
            f"Load in the background: DataLoader(num_workers={needed}) hides the {milliseconds(fetch_ns)} that a batch "
            f"takes behind {milliseconds(busy_ns)} of other work; or make the {where} faster."
        )
    if needed <= workers:
        return (
            f"{workers} workers keep up on average (a batch takes {milliseconds(fetch_ns)}, one is needed every "
            f"{milliseconds(busy_ns)}): free cores for them, raise prefetch_factor, or hand over smaller batches."
        )
    if made.get("cores_share", 0.0) >= MOST_OF_IT:
        return (
            f"Make the {where} faster: a batch takes {milliseconds(fetch_ns)}, one is needed every {milliseconds(busy_ns)}, and "
            "the cores that more workers would need the ranks need as well."
        )
    return (
        f"Raise DataLoader(num_workers={workers}) to {needed} (a batch takes {milliseconds(fetch_ns)} to make, and one is "
        f"needed every {milliseconds(busy_ns)}), if there are cores for them; or make the {where} faster."
    )
