"""The shape of the gradients: one that outweighs all others, or those that come too late to hide."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import BACKWARD, Category
from ..facts import Facts
from ..model.words import milliseconds, shorten
from ..predict.change import ByStep, Change, removed
from ..predict.overlap import overlapped
from .base import WORTH_RATIO, Finding, accumulation

#: A tensor with this share of all bytes is what communication is about.
OVERSIZE_SHARE: Final = 0.6
#: So many tensors at most share that place, each with so much of the bytes.
MAX_OVERSIZE: Final = 3
OVERSIZE_EACH: Final = 0.2
#: The next largest tensor is at least so many times smaller.
OVERSIZE_GAP: Final = 4.0
OVERSIZE_NBYTES: Final = 4 * 1024 * 1024
#: Gradients that are ready in this last share of backward have nothing left to hide behind.
LATE_SHARE: Final = 0.15
#: That many of the bytes come late before the order of the gradients is worth a look.
LATE_BYTES_SHARE: Final = 0.5
#: Fewer bytes a step cost a latency, whenever they come.
LATE_NBYTES: Final = 1024 * 1024
#: What hides on a processor takes cores from what hides it: about half of the time comes back.
HIDDEN_ON_PROCESSOR: Final = 0.5


def _gradients(facts: Facts) -> pd.DataFrame:
    """Tensors that were reduced within the analysed steps, with the rank's step; largest parts of the loop only."""
    tensors = facts.trace.tensors
    tensors = tensors[(tensors["nbytes"] > 0) & (tensors["submitted_ns"] >= 0) & (tensors["kind"] != "broadcast")]
    return facts.in_steps(tensors)


def _in_buckets(facts: Facts) -> pd.DataFrame:
    """The same for DDP, whose buckets do not tell what they carry: the largest gradient by itself, and what else a bucket has."""
    if facts.trace.meta.largest_gradient is None:
        return pd.DataFrame()
    name, nbytes, _ = facts.trace.meta.largest_gradient
    buckets = facts.in_steps(facts.collectives)
    buckets = buckets[buckets["kind"] == "allreduce"][["rank", "submitted_ns", "nbytes"]]
    holds_it = buckets["nbytes"] >= nbytes
    alone = buckets[holds_it].assign(name=name, nbytes=nbytes)
    rest = buckets.assign(name="everything else", nbytes=buckets["nbytes"] - nbytes * holds_it)
    rest = rest[rest["nbytes"] > 0]
    return pd.concat([alone, rest], ignore_index=True).sort_values(["rank", "submitted_ns"], kind="stable")


class OversizeGradient:
    """One tensor outweighs all others: reducing, computing and applying its gradient is most of the cost."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None:
            return []
        tensors = _gradients(facts)
        if tensors.empty:
            tensors = _in_buckets(facts)
        if tensors.empty:
            return []
        by_name = tensors.groupby("name", observed=True)["nbytes"].sum().sort_values(ascending=False)
        by_name = by_name[by_name.index != "everything else"] / by_name.sum()
        names = _largest(by_name)
        share = float(by_name[names].sum()) if names else 0.0
        nbytes = sum(int(tensors.loc[tensors["name"] == name, "nbytes"].max()) for name in names)
        if share < OVERSIZE_SHARE or nbytes < OVERSIZE_NBYTES:
            return []
        smaller = Change(latency=1 - share, transfer=1 - share, contention=1 - share)
        communication = facts.outcome(smaller).gain
        if communication < WORTH_RATIO / 2:
            return []
        backward = facts.part(str(Category.BACKWARD)).astype(float)
        made_ns = np.minimum(
            np.sum([_time_to_make(facts, tensors, name) for name in names], axis=0),
            (backward - facts.contention_ns).mean(axis=1),
        )
        work: dict[str, ByStep] = {
            str(Category.OPTIMIZER): 1 - share,
            str(Category.BACKWARD): removed(backward, made_ns[:, None]),
        }
        outcome = facts.outcome(smaller & Change(work=work))
        shown = " and ".join(shorten(name.removeprefix("allreduce.")) for name in names)
        return [
            Finding(
                class_="communication",
                cause="oversize-gradient",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.75,
                evidence={
                    "tensor": shorten(names[0]),
                    "tensors": [shorten(name) for name in names],
                    "bytes": nbytes,
                    "share_of_bytes": round(share, 3),
                    "gain_from_communication_alone": round(communication, 4),
                    "gradient_made_in_ns": round(float(made_ns.mean())),
                },
                remedy=(
                    f"Keep the dense gradient of {shown} out of every step: nn.Embedding(sparse=True) with "
                    "sparse_as_dense=False if few rows change, a factored or smaller layer, divided over the ranks, or updated "
                    f"every few steps ({accumulation(facts)})."
                ),
                sentence=(
                    f"{shown} {'has' if len(names) == 1 else 'have'} {share:.0%} of all gradient bytes "
                    f"({nbytes / 1e6:.1f} MB): computing, reducing and applying "
                    f"{'its gradient' if len(names) == 1 else 'their gradients'} costs "
                    f"{milliseconds(outcome.mean_saved_ns)} of each "
                    f"{milliseconds(facts.mean_step_ns)} step."
                ),
            )
        ]


def _largest(shares: pd.Series) -> list[str]:
    """The few tensors, largest first, that outweigh the rest: each a good part of all bytes, and far larger than any other.

    Without a gap behind them they are what models are made of.
    """
    for count in range(1, min(MAX_OVERSIZE, len(shares)) + 1):
        last = float(shares.iloc[count - 1])
        following = float(shares.iloc[count]) if count < len(shares) else 0.0
        if last < OVERSIZE_EACH:
            break
        if float(shares.iloc[:count].sum()) >= OVERSIZE_SHARE and last >= OVERSIZE_GAP * following:
            return [str(name) for name in shares.index[:count]]
    return []


def _time_to_make(facts: Facts, tensors: pd.DataFrame, name: str) -> np.ndarray:
    """Median time between the gradient before and this one, on each rank (ns): what backward spends on it."""
    made = np.zeros(len(facts.ranks))
    backward = facts.trace.spans[facts.trace.spans["name"] == BACKWARD]
    for row, rank in enumerate(facts.ranks):
        mine = tensors[tensors["rank"] == rank].sort_values("submitted_ns", kind="stable")
        begins = np.sort(backward.loc[backward["rank"] == rank, "start_ns"].to_numpy())
        submitted = mine["submitted_ns"].to_numpy()
        is_it = (mine["name"] == name).to_numpy()
        position = np.searchsorted(begins, submitted, side="right") - 1
        before = np.concatenate(([0], submitted[:-1]))
        began = np.where(position >= 0, begins[np.maximum(position, 0)] if len(begins) else 0, 0)
        gaps = (submitted - np.maximum(before, began))[is_it & (position >= 0)]
        made[row] = float(np.median(gaps)) if len(gaps) else 0.0
    return made


class LateGradients:
    """Most bytes are ready only when backward is nearly over, so that nothing hides them."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or facts.breakdown.on_device:
            return []
        tensors = _gradients(facts)
        spans = facts.in_steps(facts.trace.spans[facts.trace.spans["name"] == BACKWARD])
        if tensors.empty or spans.empty:
            return []
        late_bytes, all_bytes = 0.0, 0.0
        for rank in facts.ranks:
            mine = tensors[tensors["rank"] == rank]
            backward = spans[spans["rank"] == rank].sort_values("start_ns", kind="stable")
            starts = backward["start_ns"].to_numpy()
            if not len(starts):
                continue
            durations = backward["dur_ns"].to_numpy()
            position = np.maximum(np.searchsorted(starts, mine["submitted_ns"].to_numpy(), side="right") - 1, 0)
            progress = (mine["submitted_ns"].to_numpy() - starts[position]) / np.maximum(durations[position], 1)
            nbytes = mine["nbytes"].to_numpy(dtype=float)
            late_bytes += float(nbytes[progress > 1 - LATE_SHARE].sum())
            all_bytes += float(nbytes.sum())
        late = late_bytes / max(all_bytes, 1.0)
        if late < LATE_BYTES_SHARE or all_bytes < LATE_NBYTES * facts.steps.count * len(facts.ranks):
            return []
        overlap = overlapped(facts)
        outcome = facts.outcome_of(overlap.saved_ns * HIDDEN_ON_PROCESSOR, overlap.change)
        if outcome.gain < WORTH_RATIO / 2:
            return []
        last = tensors.iloc[int(tensors["nbytes"].to_numpy().argmax())]
        return [
            Finding(
                class_="communication",
                cause="late-gradients",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.6,
                evidence={
                    "late_bytes_share": round(late, 3),
                    "late_is_after_share_of_backward": 1 - LATE_SHARE,
                    "hidden_communication_ns": round(float(facts.breakdown.hidden_ns.mean())),
                    "contention_ns": round(float(facts.contention_ns.mean())),
                    "largest_tensor": shorten(str(last["name"])),
                },
                remedy=(
                    "Let gradients come earlier: large layers near the output rather than near the input, "
                    f"{accumulation(facts)} to reduce less often, or the optimizer's update of this step behind the next "
                    "forward pass."
                ),
                sentence=(
                    f"{late:.0%} of the gradient bytes are ready only in the last {LATE_SHARE:.0%} of backward, so that nothing "
                    f"hides their reduction; {milliseconds(outcome.mean_saved_ns)} of each "
                    f"{milliseconds(facts.mean_step_ns)} step could be hidden."
                ),
            )
        ]


class BucketCopies:
    """DDP copies every gradient into its bucket and out of it again; as views of the buckets they need no copy."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.trace.meta.runtime != "torch" or facts.replay is None or facts.breakdown.on_device:
            return []
        copying = facts.on_critical_rank(str(Category.FUSION))
        outcome = facts.outcome_of(
            copying, facts.without(str(Category.FUSION), facts.part(str(Category.FUSION)).astype(float))
        )
        if outcome.gain < WORTH_RATIO / 2:
            return []
        return [
            Finding(
                class_="communication",
                cause="bucket-copies",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.8,
                evidence={"copying_out_ns": round(float(copying.mean()))},
                remedy="DistributedDataParallel(gradient_as_bucket_view=True): gradients then live in the buckets.",
                sentence=(
                    f"After its buckets are reduced, DDP copies the gradients out of them: "
                    f"{milliseconds(float(copying.mean()))} of each {milliseconds(facts.mean_step_ns)} step."
                ),
            )
        ]
