"""Collectives that take long whatever they carry: a far or congested network, or a transport that waits."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.words import milliseconds
from ..predict.change import Change
from ..predict.costs import fitted_latency_ns
from ..predict.serial import WAITING_CALLERS
from .base import WORTH_RATIO, Finding, promise
from .callers import called_by_user
from .transport import TIME_SLICE_NS, is_one_host, is_slow_link, lacks_cores

#: A collective of no bytes takes less than this on networks of today, and between the processes of a host.
GOOD_NS: Final = 0.5e6
#: Latencies that are no more than chance on busy hosts: between hosts, and on a single one.
MIN_NS: Final = 1e6
MIN_ON_ONE_HOST_NS: Final = 3e6
#: Of the time of the collectives that are waited for, latency has to have this share.
MIN_SHARE: Final = 0.5
#: Times of messages are alike if one is at least this share of the other.
ALIKE: Final = 0.4
#: So many collectives have to be agreed on alone to tell what that takes.
ENOUGH_ALONE: Final = 10
#: Few bytes are no more than this share of the largest collective's.
FEW_BYTES: Final = 0.125
#: From agreement to the end a steady time varies by this share of it, while the beginning varies by that one.
STEADY: Final = 0.1
VARIES: Final = 0.3
#: Collectives in which the time goes with their number, not their size, are better fused (communication.py).
BESIDE_FUSION: Final = 0.8


class HighLatency:
    """The latency of the gradients' collectives is far above what networks have."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or facts.graph is None or is_slow_link(facts):
            return []
        latency_ns = _latency_ns(facts)
        one_host = is_one_host(facts)
        least_ns = MIN_ON_ONE_HOST_NS if one_host else MIN_NS
        if lacks_cores(facts):  # each rank may wait for its core in each round of a ring
            least_ns = max(least_ns, 2 * len(facts.ranks) * TIME_SLICE_NS)
        if latency_ns < least_ns:
            return []
        costs, mine = facts.replay.costs, ~called_by_user(facts)
        took = costs.latency_ns + costs.transfer_ns
        if float(np.minimum(latency_ns, took)[mine].sum()) < MIN_SHARE * float(took[mine].sum()):
            return []
        excess = np.minimum(latency_ns - GOOD_NS, np.maximum(took - GOOD_NS, 0.0))
        left = np.where(mine, np.divide(took - excess, took, out=np.ones(len(took)), where=took > 0), 1.0)
        outcome = facts.outcome(Change(latency=left, transfer=left))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        per_step = float(mine.sum()) / facts.steps.count
        return [
            promise(
                outcome,
                class_="communication",
                cause="high-latency",
                ranks=facts.ranks,
                order_gain=BESIDE_FUSION * outcome.gain,
                confidence=0.75,
                evidence={
                    "latency_ns": round(latency_ns),
                    "compared_with_ns": round(GOOD_NS),
                    "collectives_per_step": round(per_step, 1),
                    "is_one_host": one_host,
                },
                remedy=(
                    "Find out why a collective takes so long before bytes move "
                    + (
                        "(threads that wait for a core, a transport that polls, a proxy or VPN on the loopback interface)"
                        if one_host
                        else "(ping between the hosts, the interface that is used, a firewall or VPN on the way, hosts in "
                        "different zones)"
                    )
                    + "; until then make them fewer: larger fusion buffers or buckets."
                ),
                sentence=(
                    f"A collective takes {milliseconds(latency_ns)} however few bytes it carries, and a step has "
                    f"{per_step:.0f} of them: {milliseconds(outcome.mean_saved_ns)} of each "
                    f"{milliseconds(facts.mean_step_ns)} step."
                ),
            )
        ]


def _latency_ns(facts: Facts) -> float:
    """Of the gradients' collectives."""
    assert facts.graph is not None
    operations = facts.graph.operations
    mine = ~called_by_user(facts)
    return fitted_latency_ns(operations.nbytes[mine].astype(float), operations.duration_ns[mine].astype(float))


def of_gradients_ns(facts: Facts, agreeing_ns: float = 0.0) -> float:
    """The latency of the gradients' collectives, where nothing but communication is recorded.

    Args:
        agreeing_ns: how long it takes to agree on a tensor; messages that take as long on their way back are latency, too.
    """
    table = facts.in_steps(facts.collectives)
    table = table[(table["kind"] != "barrier") & ~table["caller"].isin(list(WAITING_CALLERS))]
    fitted = fitted_latency_ns(table["nbytes"].to_numpy(dtype=float), table["transfer_ns"].to_numpy(dtype=float))
    answer = max(_answer_ns(table), _steady_answer_ns(table))
    return max(fitted, answer) if _are_alike(answer, agreeing_ns) else fitted


def _answer_ns(table: pd.DataFrame) -> float:
    """How much longer collectives take that are agreed on while no other one runs than their bytes need; 0 if unknown (ns).

    The recording rank begins as soon as it knows what to reduce, and waits in the collective until the others know, too.  What is
    agreed on while another collective runs does not show that: the messages travel meanwhile.  Bytes need no more than the
    quickest collectives that carry as many, or than at the best rate of the run.
    """
    if len(table) < 2:  # noqa: PLR2004  nothing in front
        return 0.0
    table = table.sort_values("start_ns", kind="stable")
    ends = (table["start_ns"] + table["dur_ns"]).cummax().to_numpy()
    agreed, took = table["negotiated_ns"].to_numpy(), table["transfer_ns"].to_numpy(dtype=float)
    alone = (agreed >= 0) & (table["nbytes"].to_numpy() > 0)
    alone[1:] &= agreed[1:] >= ends[:-1]
    if alone.sum() < ENOUGH_ALONE:
        return 0.0
    sizes = table["nbytes"].to_numpy(dtype=float)
    at_best = float(np.quantile(sizes / np.maximum(took, 1.0), 0.9))
    quick = {
        size: min(float(np.quantile(took[sizes >= size], 0.1)), size / max(at_best, 1e-9))
        for size in np.unique(sizes[alone])
    }
    return max(float(np.median([took[row] - quick[sizes[row]] for row in np.flatnonzero(alone)])), 0.0)


def _steady_answer_ns(table: pd.DataFrame) -> float:
    """How long after it is agreed on a collective of few bytes ends, if that is always the same; 0 if it is not (ns).

    Behind another collective it begins later, and takes less by as much: it ends when the answer has reached the other ranks,
    whenever this one begins.
    """
    known = (table["negotiated_ns"] >= 0) & (table["nbytes"] > 0)
    table = table[known & (table["nbytes"] <= FEW_BYTES * table["nbytes"].max())]
    if len(table) < ENOUGH_ALONE:
        return 0.0
    lead = (table["start_ns"] - table["negotiated_ns"]).to_numpy(dtype=float)
    low, middle, high = np.quantile(lead + table["dur_ns"].to_numpy(dtype=float), [0.25, 0.5, 0.75])
    first, last = np.quantile(lead, [0.1, 0.9])
    is_steady = high - low <= STEADY * middle and last - first >= VARIES * middle
    return float(middle) if is_steady else 0.0


def messages_take_long(facts: Facts, agreeing_ns: float) -> bool:
    """Whether it is messages that take so long until tensors are agreed on, and no rank: collectives take as long, too.

    Args:
        agreeing_ns: how long it takes to agree.
    """
    return _are_alike(of_gradients_ns(facts, agreeing_ns), agreeing_ns)


def _are_alike(latency_ns: float, agreeing_ns: float) -> bool:
    return latency_ns >= MIN_NS and ALIKE * agreeing_ns <= latency_ns and agreeing_ns <= latency_ns / ALIKE
