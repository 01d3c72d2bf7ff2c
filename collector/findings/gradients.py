"""The gradients' sizes: one that outweighs all others; and what copying them costs."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import BACKWARD, Category, CostlySetting
from ..facts import Facts
from ..model.common import common_to_all
from ..model.words import milliseconds, shorten
from ..predict.change import ByStep, Change, removed
from .base import OF_MODEL, WORTH_RATIO, Finding, accumulation, promise
from .callers import called_by_user, is_called_by_user
from .framework_words import Advice, advise

#: A tensor with this share of all bytes is what communication is about.
OVERSIZE_SHARE: Final = 0.6
#: So many tensors at most share that place, each with so much of the bytes.
MAX_OVERSIZE: Final = 3
OVERSIZE_EACH: Final = 0.2
#: The next largest tensor is at least so many times smaller.
OVERSIZE_GAP: Final = 4.0
OVERSIZE_NBYTES: Final = 4 * 1024 * 1024
#: A dense gradient is worth a word for what its bytes cost, or for so much of what they and its update cost: through shared
#: memory, and on a loaded host, it is the update that costs more.  What it takes to compute it belongs to the model.
OF_UPDATE: Final = 0.5
#: To fill a gradient is a pass over its bytes, as it is to reduce and apply it.  What takes longer than so many times these has
#: another reason: a wide layer's product, or a hook.
MAX_OF_PASSES: Final = 2.0
#: DistributedDataParallel closes a bucket at so many bytes unless it is told otherwise.
BUCKET_NBYTES: Final = 25 * 1024 * 1024
#: A bucket of so many full ones holds a gradient that is larger than they are.
FULL_BUCKETS: Final = 3
#: A bucket's size belongs to the model if it comes in so many of the steps.
STEADY: Final = 0.8
#: A core that others want, too, copies a byte from cold memory in less.  Measured: 0.14 ns, two ranks on two loaded cores.
COPY_NS_A_BYTE: Final = 1.0
#: What is submitted first within this last share of backward was not made just then.
AT_END: Final = 0.15


def gradients(facts: Facts) -> pd.DataFrame:
    """Tensors that were reduced within the analysed steps, with the rank's step; largest parts of the loop only."""
    tensors = facts.trace.tensors
    tensors = tensors[(tensors["nbytes"] > 0) & (tensors["submitted_ns"] >= 0) & (tensors["kind"] != "broadcast")]
    return facts.in_steps(tensors)


def _in_buckets(facts: Facts) -> pd.DataFrame:
    """The same for DDP, whose buckets do not tell what they carry: the largest gradient by itself, and what else a bucket has."""
    largest = largest_gradient(facts)
    if largest is None:
        return pd.DataFrame()
    name, nbytes = largest
    buckets = facts.in_steps(facts.collectives)
    buckets = buckets[buckets["kind"] == "allreduce"][["rank", "submitted_ns", "nbytes"]]
    holds_it = buckets["nbytes"] >= nbytes
    alone = buckets[holds_it].assign(name=name, nbytes=nbytes)
    rest = buckets.assign(name="everything else", nbytes=buckets["nbytes"] - nbytes * holds_it)
    rest = rest[rest["nbytes"] > 0]
    return pd.concat([alone, rest], ignore_index=True).sort_values(["rank", "submitted_ns"], kind="stable")


def largest_gradient(facts: Facts) -> tuple[str, int] | None:
    """What it is called, and its bytes; None if nothing tells.

    DDP closes a bucket when it is full.  One of far more than that holds a gradient that alone is as large as what is beyond.
    """
    if facts.trace.meta.largest_gradient is not None:
        name, nbytes, _ = facts.trace.meta.largest_gradient
        return name, nbytes
    buckets = facts.in_steps(facts.collectives)
    buckets = buckets[(buckets["kind"] == "allreduce") & ~is_called_by_user(buckets)]
    counts = buckets["nbytes"].value_counts()
    # Sizes that come with nearly every step; the last step may be cut.
    sizes = sorted(
        (int(size) for size in counts.index[counts >= STEADY * facts.steps.count * len(facts.ranks)]), reverse=True
    )
    if not sizes or sizes[0] < FULL_BUCKETS * BUCKET_NBYTES:
        return None
    if len(sizes) > 1 and sizes[0] < OVERSIZE_GAP * sizes[1]:
        return None
    return f"a gradient in a bucket of {sizes[0] / 1e6:.0f} MB", sizes[0] - BUCKET_NBYTES


class OversizeGradient:
    """One tensor outweighs all others: reducing, computing and applying its gradient is most of the cost."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None:
            return []
        tensors = gradients(facts)
        if tensors.empty:
            tensors = _in_buckets(facts)
        if tensors.empty:
            return []
        by_name = tensors.groupby("name", observed=True)["nbytes"].sum().sort_values(ascending=False)
        by_name = by_name[by_name.index != "everything else"] / by_name.sum()
        names = largest_of(by_name)
        share = float(by_name[names].sum()) if names else 0.0
        nbytes = sum(int(tensors.loc[tensors["name"] == name, "nbytes"].max()) for name in names)
        if share < OVERSIZE_SHARE or nbytes < OVERSIZE_NBYTES:
            return []
        left = _left_of_operations(facts, names, nbytes)
        smaller = Change(latency=np.where(left > 0, 1.0, 0.0), transfer=left, contention=1 - share)
        communication = facts.outcome(smaller).gain
        # What one rank's update takes longer than the others' is not due to the tensors.
        update = facts.part(str(Category.OPTIMIZER)).astype(float)
        applied: dict[str, ByStep] = {str(Category.OPTIMIZER): removed(update, share * common_to_all(update))}
        moved_and_applied = facts.outcome(smaller & Change(work=applied))
        cost_of_density = max(communication, OF_UPDATE * moved_and_applied.gain)
        if cost_of_density < WORTH_RATIO:
            return []
        backward = facts.part(str(Category.BACKWARD)).astype(float)
        made_ns = np.minimum(
            np.sum([_time_to_make(facts, tensors, name) for name in names], axis=0),
            (backward - facts.contention_ns).mean(axis=1),
        )
        # What one rank takes longer for than the others is that rank's.
        made = float(made_ns.min())
        dense_ns = min(made, MAX_OF_PASSES * moved_and_applied.mean_saved_ns)
        work: dict[str, ByStep] = {
            **applied,
            str(Category.BACKWARD): removed(backward, np.full((len(backward), 1), dense_ns)),
        }
        outcome = facts.outcome(smaller & Change(work=work))
        its = "its gradient" if len(names) == 1 else "their gradients"
        more = ""
        if made - dense_ns >= WORTH_RATIO * facts.mean_step_ns:
            more = (
                f" Computing {its} takes {milliseconds(made)}, more than the bytes explain: look first at what the layer does in "
                "backward, and at hooks on its parameters."
            )
        shown = " and ".join(shorten(name.removeprefix("allreduce.")) for name in names)
        return [
            promise(
                outcome,
                class_="communication",
                cause="oversize-gradient",
                ranks=facts.ranks,
                # A table that need not be dense is a mistake, and no part of the model.
                order_gain=None if facts.is_on_all(CostlySetting.MOSTLY_ZERO_GRADIENTS) else OF_MODEL * cost_of_density,
                confidence=0.75,
                evidence={
                    "tensor": shorten(names[0]),
                    "tensors": [shorten(name) for name in names],
                    "bytes": nbytes,
                    "share_of_bytes": round(share, 3),
                    "gain_from_communication_alone": round(communication, 4),
                    "gradient_made_in_ns": round(made),
                },
                remedy=(
                    f"Keep the dense gradient of {shown} out of every step: "
                    f"{advise(facts, Advice.SPARSE_GRADIENT).removesuffix('.')}, a factored or smaller layer, divided over the "
                    f"ranks, or updated every few steps ({accumulation(facts)})."
                ),
                sentence=(
                    f"{shown} {'has' if len(names) == 1 else 'have'} {share:.0%} of all gradient bytes "
                    f"({nbytes / 1e6:.1f} MB): computing, reducing and applying "
                    f"{its} costs {milliseconds(outcome.mean_saved_ns)} of each {milliseconds(facts.mean_step_ns)} step.{more}"
                ),
            )
        ]


def _left_of_operations(facts: Facts, names: Sequence[str], nbytes: int) -> np.ndarray:
    """What is left of each operation's bytes without these tensors: float[operation]."""
    assert facts.graph is not None
    operations = facts.graph.operations
    carried = np.zeros(len(operations))
    tensors = facts.trace.tensors
    tensors = tensors[tensors["name"].isin(list(names)) & (tensors["seq"] >= 0)]
    key = ["process_set", "seq"]
    if len(tensors):
        by_operation = tensors.drop_duplicates([*key, "name"]).groupby(key, observed=True)["nbytes"].sum()
        index = pd.MultiIndex.from_arrays([operations.process_set, operations.seq])
        carried = by_operation.reindex(index).fillna(0.0).to_numpy(dtype=float)
    elif largest_gradient(facts) is not None:  # a bucket that is as large carries it
        carried = np.where(operations.nbytes >= nbytes, float(nbytes), 0.0)
    left = np.maximum(1 - carried / np.maximum(operations.nbytes, 1), 0.0)
    kept: np.ndarray = np.where(called_by_user(facts) | (operations.nbytes <= 0), 1.0, left)
    return kept


def largest_of(shares: pd.Series) -> list[str]:
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
        passes = backward[backward["rank"] == rank].sort_values("start_ns", kind="stable")
        begins, lengths = passes["start_ns"].to_numpy(), passes["dur_ns"].to_numpy()
        submitted = mine["submitted_ns"].to_numpy()
        is_it = (mine["name"] == name).to_numpy()
        position = np.searchsorted(begins, submitted, side="right") - 1
        before = np.concatenate(([0], submitted[:-1]))
        began = np.where(position >= 0, begins[np.maximum(position, 0)] if len(begins) else 0, 0)
        # What is submitted when backward is nearly over, as all else, was made at some time before.
        first = began > before
        at_end = submitted > began + (1 - AT_END) * lengths[np.maximum(position, 0)] if len(begins) else ~first
        gaps = (submitted - np.maximum(before, began))[is_it & (position >= 0) & ~(first & at_end)]
        made[row] = float(np.median(gaps)) if len(gaps) else 0.0
    return made


class BucketCopies:
    """DDP copies every gradient into its bucket and out of it again; as views of the buckets they need no copy."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.trace.meta.runtime != "torch" or facts.replay is None or facts.breakdown.on_device:
            return []
        # The thread has to wake up first, and to get a core: that would remain.
        copying = np.minimum(facts.on_critical_rank(str(Category.FUSION)), COPY_NS_A_BYTE * _reduced_nbytes(facts))
        outcome = facts.outcome_of(copying, facts.without(str(Category.FUSION), copying))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        return [
            promise(
                outcome,
                class_="communication",
                cause="bucket-copies",
                order_gain=OF_MODEL * outcome.gain,
                ranks=facts.ranks,
                confidence=0.8,
                evidence={"copying_out_ns": round(float(copying.mean()))},
                remedy="DistributedDataParallel(gradient_as_bucket_view=True): gradients then live in the buckets.",
                sentence=(
                    f"After its buckets are reduced, DDP copies the gradients out of them: "
                    f"{milliseconds(float(copying.mean()))} of each {milliseconds(facts.mean_step_ns)} step."
                ),
            )
        ]


def _reduced_nbytes(facts: Facts) -> float:
    """Bytes of gradients that a rank reduces in a step."""
    table = facts.in_steps(facts.collectives)
    table = table[(table["kind"] == "allreduce") & (table["nbytes"] > 0) & ~is_called_by_user(table)]
    return float(table["nbytes"].sum()) / max(facts.steps.count * len(facts.ranks), 1)
