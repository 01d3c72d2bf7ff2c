"""What communication costs where nothing but communication is recorded.

How much of it computation hides, such a trace does not show.  What moves after the last request of a step is exposed for
certain, and all that moves is the most that can be: the gain lies between the two.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.arrays import Floats
from ..model.communication_only import OnlyCommunication, look_at_communication, shows_training
from ..model.words import milliseconds, shorten
from ..predict.serial import Serial, one_after_another
from .base import OF_MODEL, Finding
from .late_rank import MAX_CONFIDENCE
from .latency import BESIDE_FUSION, GOOD_NS, MIN_NS, MIN_SHARE, messages_take_long, of_gradients_ns
from .only_calls import blocking_calls
from .only_gradients import cost_words, late_tensors, oversize_tensor, slow_link

#: Below this share of the step communication is not worth a word.
MIN_RATIO: Final = 0.03
#: A collective of up to this many bytes costs its latency, whatever its size.
SMALL_NBYTES: Final = 64 * 1024
#: One or two collectives cannot be fused into fewer.
MIN_SMALL: Final = 2
#: What half precision, or half as many reductions, leaves of the bytes.
HALF: Final = 0.5
#: Above this algorithm bandwidth (GB/s) a processor spends more time on halving gradients than the wire saves.
MIN_UNCOMPRESSED_GBPS: Final = 0.3


class MovingBytes:
    """Many small collectives, many bytes, slow ones, late ones, or calls that the training waits for."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One of each at most."""
        if facts.breakdown.knows_compute or not shows_training(facts):
            return []
        seen = look_at_communication(facts)
        serial = one_after_another(facts, of_gradients_ns(facts, _agreeing_ns(seen)))
        findings = blocking_calls(facts, seen, serial)
        table = serial.table[~serial.is_call]
        table = table[table["kind"] != "barrier"]
        if table.empty or seen.ratio(seen.moving_ns) < MIN_RATIO:
            return findings
        findings += [*oversize_tensor(facts, seen, serial), *late_tensors(seen, serial)]
        small = table[(table["nbytes"] >= 0) & (table["nbytes"] <= SMALL_NBYTES)]
        large = table[table["nbytes"] > SMALL_NBYTES]
        if len(small) > MIN_SMALL * facts.steps.count:
            findings.append(_small(facts, seen, serial, small))
        by_latency = float(np.minimum(serial.took_ns, serial.latency_ns)[~serial.is_call].sum())
        by_latency /= max(float(serial.took_ns[~serial.is_call].sum()), 1.0)
        if serial.latency_ns >= MIN_NS and by_latency >= MIN_SHARE:
            return [*findings, _latency(facts, seen, serial)]
        slow = slow_link(facts, seen, serial)
        if slow:
            findings += slow
        elif len(large):
            findings.append(_large(facts, seen, serial, large))
        return findings


def _gain(seen: OnlyCommunication, serial: Serial, left: Floats) -> tuple[float, tuple[float, float]]:
    """Of leaving so much of each collective: what is exposed for certain, and that no more than all that goes can be gained.

    What moves while tensors are still asked for has gradients that are computed to hide behind.

    Args:
        left: 0 to 1, float[K]; of bytes and latency alike.
    """
    gain = seen.ratio(serial.saved_ns(latency=left, transfer=left))
    removed = np.where(serial.is_call, 0.0, (1 - left) * serial.took_ns)
    return gain, (gain, max(gain, seen.ratio(np.minimum(serial.by_step(removed), seen.moving_ns))))


def _agreeing_ns(seen: OnlyCommunication) -> float:
    """What tensors wait until they are agreed on, in the quicker steps."""
    return float(np.quantile(seen.wait_ns, 0.25))


def _evidence(facts: Facts, seen: OnlyCommunication, table: pd.DataFrame) -> dict[str, Any]:
    return {
        "moving_ns": round(float(seen.moving_ns.mean())),
        "exposed_for_certain_ns": round(float(seen.exposed_ns.mean())),
        "negotiate_ns": round(float(seen.negotiate_ns.mean())),
        "collectives_per_step": round(len(table) / facts.steps.count, 1),
        "tensors_per_collective": round(float(table["tensors"].mean()), 1),
        "bytes_per_step": round(float(table["nbytes"].clip(lower=0).sum()) / facts.steps.count),
    }


def _small(facts: Facts, seen: OnlyCommunication, serial: Serial, small: pd.DataFrame) -> Finding:
    """Each costs the same whether it carries a tensor or a hundred."""
    count = len(small) / facts.steps.count
    sizes = serial.table["nbytes"].to_numpy()
    is_small = (sizes >= 0) & (sizes <= SMALL_NBYTES) & ~serial.is_call
    gain, interval = _gain(seen, serial, np.where(is_small, 1 / count, 1.0))
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
            f"{', and none carries more than one tensor' if is_alone else ''}. {cost_words(seen, interval[1])}"
        ),
    )


def _latency(facts: Facts, seen: OnlyCommunication, serial: Serial) -> Finding:
    """The time goes neither with the bytes nor with how small they are."""
    latency_ns, table = serial.latency_ns, serial.table[~serial.is_call]
    removed = np.minimum(serial.took_ns, latency_ns) * (1 - GOOD_NS / latency_ns)
    left = 1 - removed / np.maximum(serial.took_ns, 1.0)
    gain, interval = _gain(seen, serial, left)
    agreeing_ns = _agreeing_ns(seen)
    also = ""
    if messages_take_long(facts, agreeing_ns):
        sooner = seen.ratio(serial.saved_ns(latency=left, transfer=left, agreed_sooner_ns=agreeing_ns - GOOD_NS))
        gain, interval = max(gain, sooner), (interval[0], max(interval[1], sooner))
        also = f", and ranks need as long to agree what to reduce ({milliseconds(agreeing_ns)})"
    return Finding(
        class_="communication",
        cause="high-latency",
        ranks=(),
        predicted_gain=gain,
        gain_interval=interval,
        order_gain=BESIDE_FUSION * gain,
        confidence=MAX_CONFIDENCE,
        evidence={**_evidence(facts, seen, table), "latency_ns": round(latency_ns), "compared_with_ns": round(GOOD_NS)},
        remedy=(
            "Find out why a collective takes so long before bytes move (ping between the hosts, the interface that is used); "
            "until then make them fewer: a larger HOROVOD_FUSION_THRESHOLD, groups=1."
        ),
        sentence=(
            f"A collective takes {milliseconds(latency_ns)} however few bytes it carries{also}. {cost_words(seen, interval[1])}"
        ),
    )


def _large(facts: Facts, seen: OnlyCommunication, serial: Serial, large: pd.DataFrame) -> Finding:
    """The time goes with the bytes."""
    algbw = float(large["nbytes"].sum()) / max(float(large["transfer_ns"].sum()), 1.0)
    on_processor = not large["algorithm"].astype(str).str.contains("nccl|rccl", case=False).any()
    is_compressible = bool(large["dtype"].isin(["float32", "float64"]).any())
    compress = is_compressible and (not on_processor or algbw < MIN_UNCOMPRESSED_GBPS)
    moved = np.maximum(serial.took_ns - serial.latency_ns, 0.0) / np.maximum(serial.took_ns, 1.0)
    is_large = (serial.table["nbytes"].to_numpy() > SMALL_NBYTES) & ~serial.is_call
    gain, interval = _gain(seen, serial, np.where(is_large, 1 - HALF * moved, 1.0))
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
        order_gain=OF_MODEL * gain,
        confidence=MAX_CONFIDENCE,
        evidence=evidence,
        remedy=(
            "Send half the bytes: DistributedOptimizer(compression=hvd.Compression.fp16); or accumulate gradients with "
            "backward_passes_per_step, and look for a faster transport or link."
            if compress
            else "Reduce gradients half as often: DistributedOptimizer(backward_passes_per_step=2), which doubles the "
            "effective batch; or look for a faster transport."
        ),
        sentence=(
            f"{evidence['bytes_per_step'] / 1e6:.1f} MB a step move at {algbw:.2f} GB/s.{which} "
            f"{cost_words(seen, interval[1])}"
        ),
    )
