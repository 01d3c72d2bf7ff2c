"""Gradients in a trace that shows communication only: a tensor that outweighs all, most bytes asked for last, a slow wire.

Requests of gradients are marks of backward: the first comes when the output's gradient is ready, the last when backward is over.
"""

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.arrays import Floats
from ..model.bandwidth import bus_factor
from ..model.communication_only import OnlyCommunication
from ..model.words import milliseconds, shorten
from ..predict.serial import Serial
from .base import OF_MODEL, WORTH_RATIO, Finding
from .gradients import OVERSIZE_NBYTES, OVERSIZE_SHARE, largest_of
from .late_gradients import LATE_BYTES_SHARE, LATE_NBYTES, LATE_SHARE
from .late_rank import MAX_CONFIDENCE
from .latency import ALIKE
from .transport import GOOD_GBPS, MIN_NBYTES, MIN_NS, SLOW_GBPS


def cost_words(seen: OnlyCommunication, most: float) -> str:
    """What communication takes, and that more than `most` cannot be gained."""
    return (
        f"Communication moves for {milliseconds(float(seen.moving_ns.mean()))} of each {milliseconds(seen.mean_step_ns)} step, "
        f"{milliseconds(float(seen.exposed_ns.mean()))} of it when no gradient is left to compute; tensors wait for a rank "
        f"during another {milliseconds(float(seen.negotiate_ns.mean()))}. What computation hides of it this file does not show: "
        f"the gain is about {most:.0%} at most."
    )


def _carried(facts: Facts, serial: Serial, names: list[str]) -> Floats:
    """Which share of each collective's bytes these tensors are: float[K]."""
    tensors = facts.trace.tensors
    mine = tensors[tensors["name"].isin(names)].groupby(["process_set", "seq"], observed=True)["nbytes"].sum()
    key = pd.MultiIndex.from_arrays([serial.table["process_set"], serial.table["seq"]])
    nbytes = mine.reindex(key).fillna(0).to_numpy(dtype=np.float64)
    share: Floats = np.clip(nbytes / np.maximum(serial.table["nbytes"].to_numpy(), 1), 0.0, 1.0)
    return share


def _gradients(facts: Facts, serial: Serial) -> pd.DataFrame:
    """Tensors of the analysed steps that no call of user code carries."""
    tensors = facts.in_steps(facts.trace.tensors)
    calls = set(serial.table["seq"][serial.is_call].tolist())
    keep = (tensors["nbytes"] > 0) & (tensors["submitted_ns"] >= 0) & ~tensors["seq"].isin(calls)
    return tensors[keep & (tensors["kind"] != "broadcast")]


def oversize_tensor(facts: Facts, seen: OnlyCommunication, serial: Serial) -> list[Finding]:
    """At most one finding."""
    tensors = _gradients(facts, serial)
    if tensors.empty:
        return []
    by_name = tensors.groupby("name", observed=True)["nbytes"].sum().sort_values(ascending=False)
    by_name = by_name / by_name.sum()
    names = largest_of(by_name)
    share = float(by_name[names].sum()) if names else 0.0
    nbytes = sum(int(tensors.loc[tensors["name"] == name, "nbytes"].max()) for name in names)
    if share < OVERSIZE_SHARE or nbytes < OVERSIZE_NBYTES:
        return []
    carried = _carried(facts, serial, names)
    gone = carried >= 1.0
    gain = seen.ratio(serial.saved_ns(transfer=1 - carried, gone=gone))
    if gain < WORTH_RATIO / 2:
        return []
    most = max(gain, seen.ratio(serial.by_step(carried * serial.took_ns)))
    shown = " and ".join(shorten(name.removeprefix("allreduce.")) for name in names)
    return [
        Finding(
            class_="communication",
            cause="oversize-gradient",
            ranks=(),
            predicted_gain=gain,
            gain_interval=(gain / 2, most),
            order_gain=OF_MODEL * gain,
            confidence=MAX_CONFIDENCE,
            evidence={"tensor": shorten(names[0]), "bytes": nbytes, "share_of_bytes": round(share, 3)},
            remedy=(
                f"Keep the dense gradient of {shown} out of every step: an embedding with sparse gradients if few rows change, a "
                "factored or smaller layer, divided over the ranks, or reduced every few steps (backward_passes_per_step)."
            ),
            sentence=(
                f"{shown} {'has' if len(names) == 1 else 'have'} {share:.0%} of all reduced bytes ({nbytes / 1e6:.1f} MB); "
                f"without {'it' if len(names) == 1 else 'them'} steps would end {milliseconds(gain * seen.mean_step_ns)} "
                f"sooner. {cost_words(seen, most)}"
            ),
        )
    ]


def late_tensors(seen: OnlyCommunication, serial: Serial) -> list[Finding]:
    """At most one finding."""
    mine = ~serial.is_call
    nbytes = serial.table["nbytes"].to_numpy(dtype=np.float64).clip(min=0)
    per_step = float(nbytes[mine].sum()) / max(serial.steps, 1)
    if per_step < LATE_NBYTES:
        return []
    asked = pd.Series(serial.asked_ns[mine]).groupby(serial.step[mine])
    columns = range(serial.steps)
    first = asked.min().reindex(columns).to_numpy(dtype=np.float64)
    last = asked.max().reindex(columns).to_numpy(dtype=np.float64)
    window = np.nan_to_num(last - first)
    late = mine & (serial.asked_ns >= (last - LATE_SHARE * window)[serial.step])
    share = float(nbytes[late].sum() / max(nbytes[mine].sum(), 1.0))
    if share < LATE_BYTES_SHARE or float(window.mean()) < WORTH_RATIO * seen.mean_step_ns:
        return []
    # No more hides than backward has room for, beside what it hides already.
    before_last = np.minimum(serial.took_ns, np.maximum(last[serial.step] - serial.begin_ns, 0.0))
    hidden = serial.by_step(np.where(mine, before_last, 0.0))
    room = np.maximum(window - hidden, 0.0)
    saved = np.minimum(serial.saved_ns(gone=late), room)
    gain = seen.ratio(saved)
    if gain < WORTH_RATIO / 2:
        return []
    most = max(gain, seen.ratio(serial.saved_ns(gone=late)))
    return [
        Finding(
            class_="communication",
            cause="late-gradients",
            ranks=(),
            predicted_gain=gain,
            gain_interval=(gain / 2, most),
            order_gain=OF_MODEL * gain,
            confidence=MAX_CONFIDENCE,
            evidence={"late_bytes_share": round(share, 3), "window_ns": round(float(window.mean()))},
            remedy=(
                "Let gradients come earlier: large layers near the output rather than near the input, reduce less often "
                "(backward_passes_per_step), or clip and unscale gradients so that they need not all be there first."
            ),
            sentence=(
                f"{share:.0%} of the bytes are asked for in the last {LATE_SHARE:.0%} of backward, so that nothing hides their "
                f"reduction; {milliseconds(float(saved.mean()))} of each {milliseconds(seen.mean_step_ns)} step could be hidden. "
                f"{cost_words(seen, most)}"
            ),
        )
    ]


def slow_link(facts: Facts, seen: OnlyCommunication, serial: Serial) -> list[Finding]:
    """At most one finding: bytes that move more slowly than over any network of today."""
    size = facts.trace.meta.size
    table = serial.table[(serial.table["nbytes"] >= MIN_NBYTES).to_numpy() & ~serial.is_call]
    if table.empty or size < 2:  # noqa: PLR2004  no link
        return []
    table = table[table["nbytes"] >= table["nbytes"].median()]
    factors = table["kind"].astype(str).map(lambda kind: bus_factor(kind, size)).astype(float)
    over_bus = float((table["nbytes"] * factors).median())
    # The tenth percentile: a busy processor makes some transfers slow, a slow link all of them.
    moved = (table["transfer_ns"] - serial.latency_ns).clip(lower=0.0)
    per_byte = float((moved / (table["nbytes"] * factors).clip(lower=1.0)).quantile(0.1))
    took_ns = per_byte * over_bus
    if took_ns < max(MIN_NS, serial.latency_ns) or over_bus / took_ns >= SLOW_GBPS:
        return []
    if float(np.median(seen.agreeing_ns)) > ALIKE * took_ns:  # messages of a few bytes take as long
        return []
    speed = over_bus / took_ns
    left = np.where(serial.is_call, 1.0, speed / GOOD_GBPS)
    gain = seen.ratio(serial.saved_ns(transfer=left))
    if gain < WORTH_RATIO / 2:
        return []
    removed = serial.by_step((1 - left) * serial.took_ns)
    most = max(gain, seen.ratio(np.minimum(removed, seen.moving_ns)))
    return [
        Finding(
            class_="communication",
            cause="slow-link",
            ranks=(),
            predicted_gain=gain,
            gain_interval=(gain / 2, most),
            confidence=MAX_CONFIDENCE,
            evidence={"busbw_gbps": round(speed, 5), "compared_with_gbps": GOOD_GBPS, "transfer_ns": round(took_ns)},
            remedy=(
                "Find out what slows the network between the hosts (ethtool, iperf3, a wrong interface: HOROVOD_GLOO_IFACE or "
                "NCCL_SOCKET_IFNAME chooses it), or, if all ranks are on one host, what has its cores; until then send fewer "
                "bytes: DistributedOptimizer(compression=hvd.Compression.fp16)."
            ),
            sentence=(
                f"Bytes move at {speed * 1e3:.0f} MB/s between the ranks, less than a gigabit a second: {over_bus / 1e6:.1f} MB "
                f"take {milliseconds(took_ns)}. {cost_words(seen, most)}"
            ),
        )
    ]
