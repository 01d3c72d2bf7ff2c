"""The training waits for communication that no straggler explains: too many bytes, too many small collectives, slow agreement."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.model.code_spans import DIVIDES_MODELS
from ...timeline.vocabulary import Category
from ..facts import Facts, Outcome
from ..model.arrays import Floats
from ..model.breakdown import IDLE
from ..model.words import milliseconds, shorten
from ..predict.change import ByOperation, Change, removed
from .base import OF_MODEL, WORTH_RATIO, Finding, accumulation, promise
from .callers import GATHERED, PARAMETERS, called_by_user, is_called_by_user
from .framework_words import Advice, advise, is_of_strategy
from .transport import TIME_SLICE_NS, lacks_cores, others_take_cores

#: Below this share of the step communication is not worth a word.
MIN_RATIO: Final = 0.03
#: A collective of up to this many bytes costs its latency, whatever its size.
SMALL_NBYTES: Final = 64 * 1024
#: So many small ones a step a sharded model may have: gathered forward and backward, and scattered, for a few layers.
MAX_OF_SHARDED: Final = 16
#: Or up to this many bytes, if most of what it takes is the run's latency.
MAX_SMALL_NBYTES: Final = 4 * SMALL_NBYTES
#: With fewer bytes a step a collective takes its latency, and what the processor makes of it.
MIN_NBYTES: Final = 512 * 1024
#: So few collectives a step hardly become fewer: buffers and parameters of two types, and two buckets.
FEW: Final = 4
#: Of unknown size, and over after so long: between ranks of one host latency, and the moment until a thread wakes up.
SHORT_NS: Final = 2e6
#: Ranks that have a core for it agree in so much time, over any network but a slow one.
GOOD_NEGOTIATION_NS: Final = 1e6
#: What half-precision leaves of the bytes of a float32 gradient.
HALF: Final = 0.5
#: Above this bus bandwidth a processor spends more time on halving gradients than the wire saves.  Measured: the transformer
#: sample on Gloo, one host, 0.9 GB/s: 70 ms a step, 90 ms with fp16 compression.
WORTH_COMPRESSING_GBPS: Final = 0.3


class ExposedCommunication:
    """Communication on the critical path: too many bytes, too many small collectives, or a slow negotiation."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """The kinds of cost that are worth a change."""
        if facts.replay is None or facts.is_pipeline:
            return []
        moving = facts.outcome(_scaled(facts, 0.0, 0.0, contention=0.0)).saved_ns
        asking = _asking(facts)
        step_ns = facts.mean_step_ns
        findings = []
        if moving.mean() >= MIN_RATIO * step_ns:
            findings += _moving_bytes(facts, moving)
        # Where other programs have the cores, whoever has to agree waits for one first.
        is_own = facts.trace.meta.runtime != "torch" and not others_take_cores(facts)
        if asking.mean() >= MIN_RATIO * step_ns and is_own:
            findings += _negotiation(facts, asking, by_all=True)
        elif is_own and not lacks_cores(facts):
            findings += _negotiation(facts, _agreeing(facts), by_all=False)
        return findings


def _asking(facts: Facts) -> Floats:
    """Time in which the critical rank waits for agreement or for its turn."""
    asking: Floats = np.sum(
        [facts.on_critical_rank(str(part)) for part in (Category.NEGOTIATE, Category.QUEUE)], axis=0
    )
    if not facts.breakdown.on_device:
        asking = asking + facts.on_critical_rank(IDLE)
    return asking


def _agreeing(facts: Facts) -> Floats:
    """Time in which ranks wait for agreement, their mean: the rank that coordinates learns at once what the others wait for."""
    waiting: Floats = facts.part(str(Category.NEGOTIATE)).astype(float).mean(axis=0)
    return waiting


def _moving_bytes(facts: Facts, moving_ns: Floats) -> list[Finding]:
    """Divide what communication costs into what goes with its number and what goes with its bytes."""
    table = facts.in_steps(facts.collectives)
    table = table[(table["kind"] != "barrier") & ~is_called_by_user(table)]
    if table.empty:
        return []
    per_step = facts.steps.count * max(len(facts.ranks), 1)
    limit = _small_nbytes(facts, table)
    small = table[(table["nbytes"] >= 0) & (table["nbytes"] <= limit)]
    all_ns = max(float(table["dur_ns"].sum()) + float(table["copy_ns"].sum()), 1.0)
    evidence: dict[str, Any] = {
        "cost_ns": round(float(moving_ns.mean())),
        "of_it_contention_ns": round(float(facts.contention_ns.max(axis=0).mean())),
        "collectives_per_step": round(len(table) / per_step, 1),
        "tensors_per_collective": round(float(table["tensors"].mean()), 1),
        "bytes_per_step": round(float(table["nbytes"].clip(lower=0).sum()) / per_step),
    }
    if not (table["nbytes"] >= 0).any():
        # Of a device it is known what could hide them (findings/device.py).
        return [] if facts.breakdown.on_device else _of_unknown_size(facts, moving_ns, table, evidence)
    findings = []
    # One or two cannot be fused into fewer, and a model that is divided layer by layer gathers some.
    is_sharded = bool(((small["caller"] == PARAMETERS) & (small["kind"] == GATHERED)).any())
    if len(small) / per_step > (MAX_OF_SHARDED if is_sharded else 2):
        findings.append(_latency(facts, moving_ns, small, all_ns, evidence))
    large = table[table["nbytes"] > limit]
    if float(large["nbytes"].sum()) / per_step > MIN_NBYTES:
        findings += _bandwidth(facts, moving_ns, large, all_ns, evidence)
    return findings


def _small_nbytes(facts: Facts, table: pd.DataFrame) -> int:
    """Up to how many bytes a collective mostly takes the latency of this run, whatever it carries."""
    assert facts.replay is not None
    medians = table[table["nbytes"] > SMALL_NBYTES].groupby("nbytes")["transfer_ns"].median()
    mostly = medians.index[(medians * HALF <= facts.replay.costs.base_ns) & (medians.index <= MAX_SMALL_NBYTES)]
    return int(mostly.max()) if len(mostly) else SMALL_NBYTES


def _scaled(facts: Facts, latency: ByOperation, transfer: ByOperation, *, contention: float) -> Change:
    """Operations that take so many times as long, but for those that user code calls and waits for (calls.py)."""
    called = called_by_user(facts)
    return Change(
        latency=np.where(called, 1.0, latency), transfer=np.where(called, 1.0, transfer), contention=contention
    )


def _of_unknown_size(facts: Facts, moving_ns: Floats, table: pd.DataFrame, evidence: dict[str, Any]) -> list[Finding]:
    """A profile without shapes: what it costs is known, and not what would help most, unless they are short.

    What is over so soon has few bytes: a few of those a step nothing makes quicker, and many can travel together.
    """
    count, transfer_ns = evidence["collectives_per_step"], float(table["transfer_ns"].median())
    few = MAX_OF_SHARDED if (table["kind"] == GATHERED).any() else FEW
    if count <= few and transfer_ns <= SHORT_NS:
        return []
    are_many = count > few and transfer_ns <= SHORT_NS / 2
    factor = 1 / count if are_many else HALF
    outcome = facts.outcome(_scaled(facts, factor, factor, contention=factor))
    return [
        Finding(
            class_="communication",
            cause="many-small-collectives" if are_many else "exposed-communication",
            ranks=facts.ranks,
            predicted_gain=outcome.gain,
            # Nobody knows whether it is one large tensor, a slow link, or many small collectives.
            gain_interval=(
                outcome.interval[0] / 2,
                max(outcome.interval[1], facts.outcome(_scaled(facts, 0.0, 0.0, contention=0.0)).gain),
            ),
            outcome=outcome,
            order_gain=OF_MODEL * outcome.gain,
            confidence=0.5,
            evidence=evidence,
            remedy=_travel_together(facts) if are_many else advise(facts, Advice.FEWER_BYTES),
            sentence=(
                f"{count:.0f} collective{'' if count <= 1 else 's'} a step of {milliseconds(transfer_ns)} (median), of unknown "
                f"size: {_cost(facts, moving_ns)}."
            ),
        )
    ]


def _travel_together(facts: Facts) -> str:
    """What makes collectives of PyTorch's carry more each; in the words of another framework's strategy where there is one."""
    if is_of_strategy(facts):
        return advise(facts, Advice.FEWER_BYTES)
    return (
        "Let them travel together: larger buckets (DistributedDataParallel(bucket_cap_mb=100)), larger modules for "
        "fully_shard, one all_reduce of a flat tensor for your own."
    )


def _latency(facts: Facts, moving_ns: Floats, small: pd.DataFrame, all_ns: float, evidence: dict[str, Any]) -> Finding:
    """Many small collectives: each costs the same whether it carries a tensor or a hundred."""
    count = len(small) / (facts.steps.count * max(len(facts.ranks), 1))
    latency_ns = float(small["transfer_ns"].median())
    # What is left when they travel as one.
    share = float(small["dur_ns"].sum() + small["copy_ns"].sum()) / all_ns * (1 - 1 / count)
    largest = max(int(small["nbytes"].max()), SMALL_NBYTES)
    outcome = _fused(facts, share, count, largest)
    alone = float(small["tensors"].median()) <= 1
    nbytes = float(small["nbytes"].clip(lower=0).sum()) / (facts.steps.count * max(len(facts.ranks), 1))
    threshold = max(2, 1 << int(np.ceil(np.log2(max(nbytes, 1) * 2 / (1 << 20) + 1))))
    remedy = _fuse_more(threshold, alone=alone)
    if is_of_strategy(facts) or facts.trace.meta.runtime == "torch":
        remedy = _travel_together(facts)
    return promise(
        outcome,
        class_="communication",
        cause="many-small-collectives",
        ranks=facts.ranks,
        order_gain=None if alone else OF_MODEL * outcome.gain,
        confidence=0.8 if alone else 0.6,
        evidence={**evidence, "small_collectives_per_step": round(count, 1), "latency_ns": round(latency_ns)},
        remedy=remedy,
        sentence=(
            f"{count:.0f} collectives of at most {largest / 1024:.0f} KiB in every step cost "
            f"{milliseconds(latency_ns)} each, whatever their size; {_cost(facts, moving_ns)}."
        ),
    )


def _fused(facts: Facts, share: float, count: float, largest: int) -> Outcome:
    """Of having the small collectives of a step, those of up to `largest` bytes, travel as one."""
    assert facts.graph is not None
    operations = facts.graph.operations
    small = (operations.nbytes >= 0) & (operations.nbytes <= largest)
    factor = np.where(small, 1 / count, 1.0)
    change = _scaled(facts, factor, factor, contention=1 - (1 - 1 / count) * share)
    # What travels as one is agreed on as one, and asked for once.
    once = Change(negotiation=np.where(called_by_user(facts), 1.0, factor), work=_asked_once(facts, count))
    return facts.outcome(change & once)


def _asked_once(facts: Facts, count: float) -> dict[str, Floats]:
    """Forward and backward without what the library that divides the model runs for all collectives but one: float[rank, step].

    Its hooks on every module, and its own tensors of parameters, are Python of the training thread.
    """
    if facts.code is None:
        return {}
    left = {}
    for part in (str(Category.FORWARD), str(Category.BACKWARD)):
        took = facts.part(part).astype(float)
        less = (1 - 1 / count) * facts.code.library_ratio(part, DIVIDES_MODELS)[:, None] * took
        left[part] = removed(took, less)
    return left


def _fewer_bytes(facts: Facts, share: float, removed: float) -> Outcome:
    """Of taking a share of the bytes of large collectives away."""
    assert facts.graph is not None
    large = facts.graph.operations.nbytes > SMALL_NBYTES
    return facts.outcome(_scaled(facts, 1.0, np.where(large, 1 - removed, 1.0), contention=1 - share * removed))


def _fuse_more(threshold: int, *, alone: bool) -> str:
    """What makes Horovod fuse more (threshold in MiB)."""
    return (
        f"Let them travel together: HOROVOD_FUSION_THRESHOLD={threshold << 20} ({threshold} MiB) is enough for them (the "
        "default fuses up to 128 MiB; 0 fuses nothing), or reduce them with grouped_allreduce."
        if alone
        else "Let more of them travel together: raise HOROVOD_CYCLE_TIME (to 5 ms, say), or give DistributedOptimizer groups=1."
    )


def _bandwidth(
    facts: Facts, moving_ns: Floats, large: pd.DataFrame, all_ns: float, evidence: dict[str, Any]
) -> list[Finding]:
    """Large collectives: the time goes with the bytes."""
    share = float(large["dur_ns"].sum() + large["copy_ns"].sum()) / all_ns
    nbytes = float(large["nbytes"].sum())
    algbw = nbytes / max(float(large["transfer_ns"].sum()), 1.0)
    on_processor = not large["algorithm"].astype(str).str.contains("nccl|rccl", case=False).any()
    wide = float(large["dtype"].isin(["float32", "float64"]).mean())
    is_narrow = wide < HALF
    compress = not is_narrow and (not on_processor or algbw < WORTH_COMPRESSING_GBPS)
    outcome = _fewer_bytes(facts, share, HALF * (wide if compress else 1.0))
    biggest = _biggest_tensor(facts)
    who = f" The largest tensor is {biggest[0]} with {biggest[1] / 1e6:.1f} MB." if biggest else ""
    fp16 = "DistributedOptimizer(compression=hvd.Compression.fp16)"
    less_often = "DistributedOptimizer(backward_passes_per_step=2)"
    if facts.trace.meta.runtime == "torch":
        fp16 = "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
        if facts.trace.meta.largest_gradient is None:  # which DistributedDataParallel would have told
            fp16 += " with DDP, MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) with fully_shard"
        less_often = "every second pass under model.no_sync()"
    remedy = (
        f"Send half the bytes: {fp16}; or fewer: accumulate gradients "
        f"with {accumulation(facts)}, and look for a faster transport or link."
        if compress
        else f"Reduce gradients half as often: {less_often}, which doubles the effective batch; "
        + (
            "they are in half precision already. Look for a faster transport or link."
            if is_narrow
            else "at this speed fp16 compression would cost a processor more time than it saves."
        )
    )
    if is_of_strategy(facts):
        remedy = advise(facts, Advice.FEWER_BYTES)
    return [
        promise(
            outcome,
            class_="communication",
            cause="bandwidth-bound",
            ranks=facts.ranks,
            order_gain=OF_MODEL * outcome.gain,
            confidence=0.8,
            evidence={**evidence, "algbw_gbps": round(algbw, 3), "largest_tensor": biggest[0] if biggest else ""},
            remedy=remedy,
            sentence=(
                f"{evidence['bytes_per_step'] / 1e6:.1f} MB a step move at {algbw:.2f} GB/s; "
                f"{_cost(facts, moving_ns)}.{who}"
            ),
        )
    ]


def _cost(facts: Facts, moving_ns: Floats) -> str:
    """What communication costs, as far as the trace can tell."""
    share = f"{milliseconds(float(moving_ns.mean()))} of each {milliseconds(facts.mean_step_ns)} step"
    contention_ns = float(facts.contention_ns.max(axis=0).mean())
    if contention_ns > MIN_RATIO * facts.mean_step_ns:
        return f"that costs {share}, {milliseconds(contention_ns)} of it by taking cores from backward"
    return f"the training waits {share} for it"


def _biggest_tensor(facts: Facts) -> tuple[str, float] | None:
    tensors = facts.trace.tensors
    tensors = tensors[(tensors["nbytes"] > 0) & (tensors["kind"] != "broadcast")]
    if tensors.empty:
        return None
    position = int(tensors["nbytes"].to_numpy().argmax())
    return shorten(str(tensors["name"].iloc[position])), float(tensors["nbytes"].iloc[position])


def _negotiation(facts: Facts, asking_ns: Floats, *, by_all: bool) -> list[Finding]:
    """The ranks wait for the coordinator, or for their turn.

    Args:
        asking_ns: for how long, float[step].
        by_all: whether even the slowest rank does; else quicker agreement has to gain what is worth a change.
    """
    step_ns = facts.mean_step_ns
    assert facts.replay is not None
    if asking_ns.mean() < MIN_RATIO * step_ns:
        return []
    took = facts.replay.costs.negotiation_ns
    # Where cores lack, whoever has to agree waits for one first.
    good_ns = TIME_SLICE_NS if lacks_cores(facts) else GOOD_NEGOTIATION_NS
    quick = np.minimum(1.0, good_ns / np.maximum(took, 1.0))
    outcome = facts.outcome(Change(negotiation=quick))
    if outcome.gain < (MIN_RATIO / 2 if by_all else WORTH_RATIO):
        return []
    who = "Even the slowest rank waits" if by_all else "Ranks wait (mean)"
    return [
        promise(
            outcome,
            class_="communication",
            cause="slow-negotiation",
            ranks=facts.ranks,
            confidence=0.5,
            evidence={"mean_wait_ns": round(float(asking_ns.mean()))},
            remedy=(
                "Negotiate sooner: lower HOROVOD_CYCLE_TIME; leave a core to the runtime's threads (fewer OMP_NUM_THREADS)."
            ),
            sentence=(
                f"{who} {milliseconds(float(asking_ns.mean()))} of each {milliseconds(step_ns)} step "
                "until it is agreed what to reduce next."
            ),
        )
    ]
