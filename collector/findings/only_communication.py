"""What communication costs where nothing but communication is recorded.

How much of it computation hides, such a trace does not show.  What moves after the last request of a step is exposed for
certain, and all that moves is the most that can be: the gain lies between the two.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.communication_only import OnlyCommunication, look_at_communication, shows_training
from ..model.words import milliseconds, shorten
from .base import Finding
from .late_rank import MAX_CONFIDENCE
from .latency import GOOD_NS, MIN_NS, MIN_SHARE, fitted_latency_ns

#: Below this share of the step communication is not worth a word.
MIN_RATIO: Final = 0.03
#: A collective of up to this many bytes costs its latency, whatever its size.
SMALL_NBYTES: Final = 64 * 1024
#: One or two collectives cannot be fused into fewer.
MIN_SMALL: Final = 2
#: What half precision, or half as many reductions, leaves of the bytes.
HALF: Final = 0.5
#: So much of what moves before the last request of a step is taken for exposed.
NOT_HIDDEN: Final = 0.25
#: Above this algorithm bandwidth (GB/s) a processor spends more time on halving gradients than the wire saves.
MIN_UNCOMPRESSED_GBPS: Final = 0.3


class MovingBytes:
    """Many small collectives, or many bytes."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One of each at most."""
        if facts.breakdown.knows_compute or not shows_training(facts):
            return []
        seen = look_at_communication(facts)
        table = facts.in_steps(facts.collectives)
        table = table[table["kind"] != "barrier"]
        if table.empty or seen.ratio(seen.moving_ns) < MIN_RATIO:
            return []
        all_ns = max(float(table["dur_ns"].sum() + table["copy_ns"].sum()), 1.0)
        small = table[(table["nbytes"] >= 0) & (table["nbytes"] <= SMALL_NBYTES)]
        large = table[table["nbytes"] > SMALL_NBYTES]
        findings = []
        if len(small) > MIN_SMALL * facts.steps.count:
            findings.append(_small(facts, seen, small, all_ns))
        latency_ns = fitted_latency_ns(
            table["nbytes"].to_numpy(dtype=float), table["transfer_ns"].to_numpy(dtype=float)
        )
        by_latency = latency_ns * float((table["nbytes"] > 0).sum()) / all_ns
        if latency_ns >= MIN_NS and by_latency >= MIN_SHARE:
            findings.append(_latency(facts, seen, table, latency_ns, by_latency))
        elif len(large):
            findings.append(_large(facts, seen, large, all_ns))
        return findings


def _gain(seen: OnlyCommunication, removed: float) -> tuple[float, tuple[float, float]]:
    """Of taking a share of what moves away: between what is exposed for certain and all of it.

    What moves while tensors are still asked for has gradients that are computed to hide behind, mostly.
    """
    low, high = removed * seen.ratio(seen.exposed_ns), removed * seen.ratio(seen.moving_ns)
    return low + NOT_HIDDEN * (high - low), (low, high)


def _evidence(facts: Facts, seen: OnlyCommunication, table: pd.DataFrame) -> dict[str, Any]:
    return {
        "moving_ns": round(float(seen.moving_ns.mean())),
        "exposed_for_certain_ns": round(float(seen.exposed_ns.mean())),
        "negotiate_ns": round(float(seen.negotiate_ns.mean())),
        "collectives_per_step": round(len(table) / facts.steps.count, 1),
        "tensors_per_collective": round(float(table["tensors"].mean()), 1),
        "bytes_per_step": round(float(table["nbytes"].clip(lower=0).sum()) / facts.steps.count),
    }


def _cost(seen: OnlyCommunication, most: float) -> str:
    return (
        f"Communication moves for {milliseconds(float(seen.moving_ns.mean()))} of each {milliseconds(seen.mean_step_ns)} step, "
        f"{milliseconds(float(seen.exposed_ns.mean()))} of it when no gradient is left to compute; tensors wait for a rank "
        f"during another {milliseconds(float(seen.negotiate_ns.mean()))}. What computation hides of it this file does not show: "
        f"the gain is {most:.0%} at most."
    )


def _small(facts: Facts, seen: OnlyCommunication, small: pd.DataFrame, all_ns: float) -> Finding:
    """Each costs the same whether it carries a tensor or a hundred."""
    count = len(small) / facts.steps.count
    share = float(small["dur_ns"].sum() + small["copy_ns"].sum()) / all_ns * (1 - 1 / count)
    gain, interval = _gain(seen, share)
    is_alone = float(small["tensors"].median()) <= 1
    nbytes = float(small["nbytes"].sum()) / facts.steps.count
    threshold = max(2, 1 << int(np.ceil(np.log2(max(nbytes, 1) * 2 / (1 << 20) + 1))))
    each = milliseconds(float(small["transfer_ns"].median()))
    return Finding(
        class_="communication",
        cause="many-small-collectives",
        ranks=(),
        predicted_gain=gain,
        gain_interval=interval,
        confidence=MAX_CONFIDENCE,
        evidence=_evidence(facts, seen, small),
        remedy=(
            f"Let them travel together: HOROVOD_FUSION_THRESHOLD={threshold << 20} ({threshold} MiB) is enough for them (the "
            "default fuses up to 128 MiB; 0 fuses nothing), or reduce them with grouped_allreduce."
            if is_alone
            else "Let more of them travel together: DistributedOptimizer(groups=1), or HOROVOD_CYCLE_TIME=5 (ms)."
        ),
        sentence=(
            f"{count:.0f} collectives of at most 64 KiB in every step cost {each} each, whatever their size"
            f"{', and none carries more than one tensor' if is_alone else ''}. {_cost(seen, interval[1])}"
        ),
    )


def _latency(
    facts: Facts, seen: OnlyCommunication, table: pd.DataFrame, latency_ns: float, by_latency: float
) -> Finding:
    """The time goes neither with the bytes nor with how small they are."""
    gain, interval = _gain(seen, min(by_latency, 1.0) * (1 - GOOD_NS / latency_ns))
    return Finding(
        class_="communication",
        cause="high-latency",
        ranks=(),
        predicted_gain=gain,
        gain_interval=interval,
        confidence=MAX_CONFIDENCE,
        evidence={**_evidence(facts, seen, table), "latency_ns": round(latency_ns), "compared_with_ns": round(GOOD_NS)},
        remedy=(
            "Find out why a collective takes so long before bytes move (ping between the hosts, the interface that is used); "
            "until then make them fewer: a larger HOROVOD_FUSION_THRESHOLD, groups=1."
        ),
        sentence=(
            f"A collective takes {milliseconds(latency_ns)} however few bytes it carries. {_cost(seen, interval[1])}"
        ),
    )


def _large(facts: Facts, seen: OnlyCommunication, large: pd.DataFrame, all_ns: float) -> Finding:
    """The time goes with the bytes."""
    share = float(large["dur_ns"].sum() + large["copy_ns"].sum()) / all_ns
    algbw = float(large["nbytes"].sum()) / max(float(large["transfer_ns"].sum()), 1.0)
    on_processor = not large["algorithm"].astype(str).str.contains("nccl|rccl", case=False).any()
    is_compressible = bool(large["dtype"].isin(["float32", "float64"]).any())
    compress = is_compressible and (not on_processor or algbw < MIN_UNCOMPRESSED_GBPS)
    gain, interval = _gain(seen, share * HALF)
    tensors = facts.trace.tensors
    tensors = tensors[(tensors["nbytes"] > 0) & (tensors["kind"] != "broadcast")]
    largest = tensors.iloc[int(tensors["nbytes"].to_numpy().argmax())] if len(tensors) else None
    name = shorten(str(largest["name"])) if largest is not None else ""
    which = f" The largest tensor is {name} with {largest['nbytes'] / 1e6:.1f} MB." if largest is not None else ""
    evidence = _evidence(facts, seen, large) | {"algbw_gbps": round(algbw, 3), "largest_tensor": name}
    return Finding(
        class_="communication",
        cause="bandwidth-bound",
        ranks=(),
        predicted_gain=gain,
        gain_interval=interval,
        confidence=MAX_CONFIDENCE,
        evidence=evidence,
        remedy=(
            "Send half the bytes: DistributedOptimizer(compression=hvd.Compression.fp16); or accumulate gradients with "
            "backward_passes_per_step, and look for a faster transport or link."
            if compress
            else "Reduce gradients half as often: DistributedOptimizer(backward_passes_per_step=2), which doubles the "
            "effective batch; or look for a faster transport."
        ),
        sentence=f"{evidence['bytes_per_step'] / 1e6:.1f} MB a step move at {algbw:.2f} GB/s.{which} {_cost(seen, interval[1])}",
    )
