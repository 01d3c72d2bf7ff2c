"""The training waits for communication that no straggler explains."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import Category
from ..breakdown import IDLE
from ..facts import Facts, Row
from .base import Finding, gain_of, milliseconds

#: Below this share of the step exposed communication is not worth a word.
LEAST_RATIO: Final = 0.03
#: A collective of up to this many bytes costs its latency, whatever its size.
SMALL_NBYTES: Final = 64 * 1024
#: What half-precision leaves of the bytes of a float32 gradient.
HALF: Final = 0.5


class ExposedCommunication:
    """Communication on the critical path: too many bytes, too many small collectives, or a slow negotiation."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """The kinds of cost that are worth a change."""
        if not facts.steps.count:
            return []
        moving = self._exposed(facts, Category.COLLECTIVE, Category.FUSION)
        asking = self._exposed(facts, Category.NEGOTIATE, Category.QUEUE)
        if facts.breakdown.knows_compute and not facts.breakdown.on_device:
            asking = asking + facts.on_critical_rank(IDLE)
        step_ns = facts.mean_step_ns
        findings = []
        if moving.mean() >= LEAST_RATIO * step_ns:
            findings += _moving_bytes(facts, moving)
        if facts.breakdown.knows_compute and asking.mean() >= LEAST_RATIO * step_ns:
            findings.append(_negotiation(facts, asking))
        return findings

    @staticmethod
    def _exposed(facts: Facts, *categories: Category) -> Row:
        total: Row = np.sum([facts.on_critical_rank(str(category)) for category in categories], axis=0)
        return total


def _moving_bytes(facts: Facts, exposed_ns: Row) -> list[Finding]:
    """Divide exposed transfers into those that cost latency and those that cost bandwidth."""
    table = facts.in_steps(facts.collectives)
    table = table[table["kind"] != "barrier"]
    if table.empty:
        return []
    per_step = facts.steps.count * max(len(facts.ranks), 1)
    small = table[(table["nbytes"] >= 0) & (table["nbytes"] <= SMALL_NBYTES)]
    all_ns = float(table["dur_ns"].sum()) + float(table["copy_ns"].sum())
    facts_of_run: dict[str, Any] = {
        "exposed_ns": round(float(exposed_ns.mean())),
        "collectives_per_step": round(len(table) / per_step, 1),
        "tensors_per_collective": round(float(table["tensors"].mean()), 1),
        "bytes_per_step": round(float(table["nbytes"].clip(lower=0).sum()) / per_step),
    }
    findings = []
    if len(small) / per_step > 2:  # noqa: PLR2004  one or two cannot be fused into fewer
        findings += _latency(facts, exposed_ns, small, all_ns, facts_of_run)
    large = table[table["nbytes"] > SMALL_NBYTES]
    if len(large):
        findings += _bandwidth(facts, exposed_ns, large, all_ns, facts_of_run)
    return findings


def _latency(
    facts: Facts, exposed_ns: Row, small: pd.DataFrame, all_ns: float, evidence: dict[str, Any]
) -> list[Finding]:
    """Many small collectives: each costs the same whether it carries a tensor or a hundred."""
    per_step = facts.steps.count * max(len(facts.ranks), 1)
    count = len(small) / per_step
    latency_ns = float(small["transfer_ns"].median())
    # What is left when they travel as one.
    share = float(small["dur_ns"].sum() + small["copy_ns"].sum()) / max(all_ns, 1.0) * (1 - 1 / count)
    gain, interval = gain_of(exposed_ns * share, facts.mean_step_ns)
    alone = float(small["tensors"].median()) <= 1
    remedy = (
        "Let them travel together: unset HOROVOD_FUSION_THRESHOLD=0 (the default fuses up to 128 MiB), or reduce them with "
        "grouped_allreduce."
        if alone
        else "Let more of them travel together: raise HOROVOD_CYCLE_TIME (to 5 ms, say), or give DistributedOptimizer groups=1."
    )
    return [
        Finding(
            class_="communication",
            cause="many-small-collectives",
            ranks=facts.ranks if facts.breakdown.knows_compute else (),
            predicted_gain=gain,
            gain_interval=interval,
            confidence=0.8 if alone else 0.6,
            evidence={**evidence, "small_collectives_per_step": round(count, 1), "latency_ns": round(latency_ns)},
            remedy=remedy,
            sentence=(
                f"{count:.0f} collectives of at most 64 KiB in every step cost {milliseconds(latency_ns)} each, whatever "
                f"their size; {_cost(facts, exposed_ns)}."
            ),
        )
    ]


def _bandwidth(
    facts: Facts, exposed_ns: Row, large: pd.DataFrame, all_ns: float, evidence: dict[str, Any]
) -> list[Finding]:
    """Large collectives: the time goes with the bytes."""
    share = float(large["dur_ns"].sum() + large["copy_ns"].sum()) / max(all_ns, 1.0)
    wide = large["dtype"].isin(["float32", "float64"]).mean()
    gain, interval = gain_of(exposed_ns * share * HALF * float(wide), facts.mean_step_ns)
    nbytes = float(large["nbytes"].sum())
    algbw = nbytes / max(float(large["transfer_ns"].sum()), 1.0)
    biggest = _biggest_tensor(facts)
    who = f" The largest tensor is {biggest[0]} with {biggest[1] / 1e6:.1f} MB." if biggest else ""
    doubt = "" if facts.breakdown.knows_compute else " How much of that computation hides, this trace cannot tell."
    return [
        Finding(
            class_="communication",
            cause="bandwidth-bound",
            ranks=facts.ranks if facts.breakdown.knows_compute else (),
            predicted_gain=gain,
            gain_interval=interval,
            confidence=0.8 if facts.breakdown.knows_compute else 0.5,
            evidence={**evidence, "algbw_gbps": round(algbw, 3), "largest_tensor": biggest[0] if biggest else ""},
            remedy=(
                "Send half the bytes: DistributedOptimizer(compression=hvd.Compression.fp16); or fewer: accumulate gradients "
                "with backward_passes_per_step, and look for a faster transport or link."
            ),
            sentence=(
                f"{evidence['bytes_per_step'] / 1e6:.1f} MB a step move at {algbw:.2f} GB/s; {_cost(facts, exposed_ns)}."
                f"{who}{doubt}"
            ),
        )
    ]


def _cost(facts: Facts, exposed_ns: Row) -> str:
    """What communication costs, as far as the trace can tell."""
    share = f"{milliseconds(float(exposed_ns.mean()))} of each {milliseconds(facts.mean_step_ns)} step"
    return f"the training waits {share} for it" if facts.breakdown.knows_compute else f"communication takes {share}"


def _biggest_tensor(facts: Facts) -> tuple[str, float] | None:
    tensors = facts.trace.tensors
    tensors = tensors[(tensors["nbytes"] > 0) & (tensors["kind"] != "broadcast")]
    if tensors.empty:
        return None
    position = int(tensors["nbytes"].to_numpy().argmax())
    return str(tensors["name"].iloc[position]), float(tensors["nbytes"].iloc[position])


def _negotiation(facts: Facts, asking_ns: Row) -> Finding:
    """Even the slowest rank waits for the coordinator, or for its turn."""
    step_ns = facts.mean_step_ns
    # Some of it is jitter of the other ranks, which no setting removes: promise half.
    gain, interval = gain_of(asking_ns * HALF, step_ns)
    return Finding(
        class_="communication",
        cause="slow-negotiation",
        ranks=facts.ranks,
        predicted_gain=gain,
        gain_interval=interval,
        confidence=0.5,
        evidence={"mean_wait_ns": round(float(asking_ns.mean()))},
        remedy="Negotiate sooner: lower HOROVOD_CYCLE_TIME; leave a core to the runtime's threads (fewer OMP_NUM_THREADS).",
        sentence=(
            f"Even the slowest rank waits {milliseconds(float(asking_ns.mean()))} of each {milliseconds(step_ns)} step "
            "until it is agreed what to reduce next."
        ),
    )
