"""Gradients that are reduced when backward is nearly over, so that nothing hides their reduction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import BACKWARD, Category
from ..facts import Facts
from ..model.breakdown import EXPOSED
from ..model.intervals import EMPTY
from ..model.words import milliseconds, shorten
from ..predict.overlap import overlapped
from .base import OF_MODEL, WORTH_RATIO, Finding, accumulation, promise
from .callers import is_called_by_user
from .framework_words import Advice, advise, is_of_strategy, is_tensorflow
from .gradients import gradients

#: Gradients that are ready in this last share of backward have nothing left to hide behind.
LATE_SHARE: Final = 0.15
#: That many of the bytes come late before the order of the gradients is worth a look: twice what would if they came evenly.
LATE_BYTES_SHARE: Final = 0.3
#: The last of a few collectives of a step comes late anyway: it has to have so much more than its share.
OF_THE_LAST: Final = 0.15
#: Fewer bytes a step cost a latency, whenever they come.
LATE_NBYTES: Final = 1024 * 1024
#: What hides on a processor takes cores from what hides it: where the run shows neither how much, nor cores that are idle, half
#: of the time comes back.
HIDDEN_ON_PROCESSOR: Final = 0.5
#: So much of a step has to be hidden already for the run to show it, or so much in the whole run.
MIN_HIDDEN_RATIO: Final = 0.02
MIN_HIDDEN_NS: Final = 500e6
#: Nothing is reduced while backward runs if no more of the gradients than this is submitted before its last moments.
NONE_EARLY: Final = 0.02
LAST_MOMENTS: Final = 0.03
#: A group of gradients of TensorFlow that has fewer bytes goes along with the next; so many groups make sense, from and to.
GROUP_NBYTES: Final = 1024 * 1024
USUAL_GROUPS: Final = (2, 4)
#: The operator with which DistributedDataParallel asks for a bucket, one for each.
_ASKS: Final = "c10d::allreduce_"
#: One gradient is ready at the end anyway.
MIN_TENSORS: Final = 3


@dataclass(frozen=True, slots=True)
class _When:
    """When gradients are submitted, as shares of their bytes, and of their number."""

    late: float
    early_tensors: float
    """Of the tensors: submitted before backward's last moments."""
    nbytes: float
    tensors: float
    """A step of a rank."""
    largest: str
    last_share: float = 0.0
    """What the last collective of a step would have if all had as much; 0 where single tensors are known."""


_IN_PACKS: Final = (
    "Let the strategy reduce gradients in several packs, of which the first begin during backward: "
    "MultiWorkerMirroredStrategy(communication_options=tf.distribute.experimental.CommunicationOptions(bytes_per_pack=…))."
)


class LateGradients:
    """Most bytes are ready only when backward is nearly over, or are not reduced before: nothing hides them."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or facts.breakdown.on_device:
            return []
        when = _look(facts) or _look_at_profile(facts)
        if (
            when is None
            or when.late < max(LATE_BYTES_SHARE, when.last_share + OF_THE_LAST)
            or when.nbytes < _worth_nbytes(facts)
        ):
            return []
        overlap = overlapped(facts)
        outcome = facts.outcome_of(overlap.saved_ns * _comes_back(facts), overlap.change)
        if outcome.gain < WORTH_RATIO / 2:
            return []
        all_at_end = when.early_tensors <= NONE_EARLY and when.tensors >= MIN_TENSORS
        could = (
            f"{milliseconds(outcome.mean_saved_ns)} of each {milliseconds(facts.mean_step_ns)} step could be hidden."
        )
        what = "the gradient bytes" if when.largest else "the gradients, by the time of their reduction,"
        return [
            promise(
                outcome,
                class_="communication",
                cause="no-overlap" if all_at_end else "late-gradients",
                ranks=facts.ranks,
                # What is at stake, where nobody knows how much of it hiding gives back.
                order_gain=None if all_at_end else OF_MODEL * overlap.gain,
                confidence=0.6,
                evidence={
                    "late_bytes_share": round(when.late, 3),
                    "late_is_after_share_of_backward": 1 - LATE_SHARE,
                    "early_tensors_share": round(when.early_tensors, 3),
                    "hidden_communication_ns": round(float(facts.breakdown.hidden_ns.mean())),
                    "contention_ns": round(float(facts.contention_ns.mean())),
                    "largest_tensor": when.largest,
                },
                remedy=_remedy(facts, when, all_at_end=all_at_end),
                sentence=(
                    f"No gradient is reduced before backward is over, so that nothing hides their reduction; {could}"
                    if all_at_end
                    else f"{when.late:.0%} of {what} are ready only in the last {LATE_SHARE:.0%} of backward, so "
                    f"that nothing hides their reduction; {could}"
                ),
            )
        ]


def _worth_nbytes(facts: Facts) -> int:
    """From how many bytes a step on something can be done about it."""
    return USUAL_GROUPS[0] * GROUP_NBYTES if is_tensorflow(facts) and not is_of_strategy(facts) else LATE_NBYTES


def _remedy(facts: Facts, when: _When, *, all_at_end: bool) -> str:
    if is_of_strategy(facts):
        return _IN_PACKS
    if all_at_end:
        return advise(
            facts,
            Advice.REDUCE_EARLIER,
            name="DistributedDataParallel" if facts.trace.meta.runtime == "torch" else "DistributedOptimizer",
            groups=str(int(np.clip(when.nbytes // GROUP_NBYTES, *USUAL_GROUPS))),
        )
    return (
        "Let gradients come earlier: large layers near the output rather than near the input, "
        f"{accumulation(facts)} to reduce less often, or the optimizer's update of this step behind the next forward pass."
    )


def _look(facts: Facts) -> _When | None:
    """When the gradients of all ranks are submitted within backward; None where that is not recorded."""
    tensors = gradients(facts)
    spans = facts.in_steps(facts.trace.spans[facts.trace.spans["name"] == BACKWARD])
    if tensors.empty or spans.empty:
        return None
    late_bytes, all_bytes, early, count = 0.0, 0.0, 0, 0
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
        early += int((progress < 1 - LAST_MOMENTS).sum())
        count += len(mine)
    per_step = max(facts.steps.count * len(facts.ranks), 1)
    largest = tensors.iloc[int(tensors["nbytes"].to_numpy().argmax())]
    return _When(
        late_bytes / max(all_bytes, 1.0),
        early / max(count, 1),
        all_bytes / per_step,
        count / per_step,
        shorten(str(largest["name"])),
    )


def _look_at_profile(facts: Facts) -> _When | None:
    """The same in a profile, which tells no sizes: by how long collectives take, and by the operators of backward."""
    table = facts.in_steps(facts.collectives)
    table = table[(table["kind"] == "allreduce") & ~is_called_by_user(table)]
    is_profile = any(len(still) for still in facts.breakdown.still)
    if not is_profile or table.empty or (table["nbytes"] >= 0).any():
        return None
    late_ns, all_ns, early, count = 0.0, 0.0, 0, 0
    for row, rank in enumerate(facts.ranks):
        backward = facts.breakdown.moments[row].get(str(Category.BACKWARD), EMPTY)
        mine = table[table["rank"] == rank].sort_values("start_ns", kind="stable")
        asked, took = _asked_ns(facts, rank, mine), mine["transfer_ns"].to_numpy(dtype=float)
        step = np.searchsorted(facts.steps.start_ns[row], asked, side="right") - 1
        for number in np.unique(step[step >= 0]):
            begin, end = facts.steps.start_ns[row][number], facts.steps.end_ns[row][number]
            own = backward[(backward[:, 0] >= begin) & (backward[:, 0] < end)]
            if not len(own):
                continue
            chosen = step == number
            progress = (asked[chosen] - own[0, 0]) / max(int(own[-1, 1] - own[0, 0]), 1)
            late_ns += float(took[chosen][progress > 1 - LATE_SHARE].sum())
            all_ns += float(took[chosen].sum())
            early += int((progress < 1 - LAST_MOMENTS).sum())
            count += int(chosen.sum())
    per_step = max(facts.steps.count * len(facts.ranks), 1)
    if count <= per_step:  # the only one is asked for when all is computed, whatever made it long
        return None
    late = late_ns / max(all_ns, 1.0)
    return _When(late, early / count, float(LATE_NBYTES), count / per_step, "", last_share=per_step / count)


def _asked_ns(facts: Facts, rank: int, mine: pd.DataFrame) -> np.ndarray:
    """When a rank asked for each of its collectives: int64[n]; where nothing tells, when it began with it."""
    asked = mine["submitted_ns"].to_numpy()
    if (asked >= 0).all():
        return asked
    spans = facts.in_steps(facts.trace.spans[facts.trace.spans["name"] == _ASKS])
    calls = np.sort(spans.loc[spans["rank"] == rank, "start_ns"].to_numpy())
    return calls if len(calls) == len(mine) else mine["start_ns"].to_numpy()


def _comes_back(facts: Facts) -> float:
    """How much of the time that is hidden does not make backward longer."""
    hidden_ns = float(facts.breakdown.hidden_ns.mean())
    knows_contention = facts.cpu.knows_starved or any(len(still) for still in facts.breakdown.still)
    in_run_ns = hidden_ns * facts.steps.count
    if knows_contention and (hidden_ns >= MIN_HIDDEN_RATIO * facts.mean_step_ns or in_run_ns >= MIN_HIDDEN_NS):
        return float(np.clip(1 - facts.contention_ns.mean() / hidden_ns, 0.0, 1.0))
    load = facts.host_load
    if load is None or load.lacks_cores or load.busy_ratio is None or load.cores_per_rank is None:
        return HIDDEN_ON_PROCESSOR
    # The thread that moves bytes wants a core while the training computes; in the rest of the step its cores are idle.
    waits_ns = float(np.sum([facts.part(part) for part in EXPOSED], axis=0).mean())
    computes = max(1 - waits_ns / max(facts.mean_step_ns, 1.0), load.busy_ratio)
    return float(np.clip(load.cores_per_rank * (1 - load.busy_ratio / max(computes, 1e-9)), 0.0, 1.0))
