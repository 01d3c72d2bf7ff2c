"""What makes a training slow as long as it is so: debugging aids that somebody left on, double precision, gradients for nothing.

A trace shows them as slow work of whatever they slow down.  What debugging aids cost nobody can tell without switching them off:
they promise no gain.  What a habit of the model's costs follows from how much of the model it concerns (setting_costs.py).
Without a gain they are the verdict where nothing else is found and all ranks have them; on some ranks, beside others that are as
quick without, they cost little, and beside quicker ones they may be why these are slow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...timeline.vocabulary import CostlySetting
from ..facts import Facts
from ..model.words import milliseconds, name_ranks
from .base import Finding, promise
from .plain import plain
from .setting_costs import cost_of


@dataclass(frozen=True, slots=True)
class _Words:
    name: str
    effect: str
    remedy: str


_WORDS: Final = {
    CostlySetting.AUTOGRAD_ANOMALY: _Words(
        "autograd's anomaly detection on",
        "records a traceback for every operation and checks every gradient for NaN",
        "torch.autograd.set_detect_anomaly(False), or detect_anomaly() only around what is being debugged",
    ),
    CostlySetting.PYTHON_TRACING: _Words(
        "a tracer of Python (debugger, coverage, cProfile) on",
        "runs at each call or line of the training thread",
        "run the training without it",
    ),
    CostlySetting.TRACEMALLOC: _Words(
        "tracemalloc on",
        "records a traceback for every allocation of Python",
        "unset PYTHONTRACEMALLOC, or call tracemalloc.stop()",
    ),
    CostlySetting.TORCH_PROFILER: _Words(
        "a torch.profiler on",
        "records every operation",
        "profile a few steps only, by schedule=torch.profiler.schedule(wait=…, warmup=…, active=…, repeat=1)",
    ),
    CostlySetting.LAUNCH_BLOCKING: _Words(
        "CUDA_LAUNCH_BLOCKING=1 on", "makes the host wait for each kernel", "unset CUDA_LAUNCH_BLOCKING"
    ),
    CostlySetting.DISTRIBUTED_DEBUG: _Words(
        "TORCH_DISTRIBUTED_DEBUG=DETAIL on",
        "has ranks compare what they ask for before each collective",
        "unset TORCH_DISTRIBUTED_DEBUG, or set it to INFO",
    ),
    CostlySetting.EAGER_FUNCTIONS: _Words(
        "compiled functions switched off (run_eagerly=True, or tf.config.run_functions_eagerly(True))",
        "runs each operation of a step from Python",
        "compile(run_eagerly=False), or tf.config.run_functions_eagerly(False)",
    ),
    CostlySetting.DOUBLE_PRECISION: _Words(
        "a model in double precision (float64)",
        "computes, keeps and sends twice the bytes of float32",
        "model.float(), with inputs in float32, if the precision is not needed",
    ),
    CostlySetting.UNTRAINED_GRADIENTS: _Words(
        "gradients of parameters that no optimizer updates",
        "backward computes in vain",
        "requires_grad_(False) for what is not trained, or its forward pass under torch.no_grad()",
    ),
    CostlySetting.MOSTLY_ZERO_GRADIENTS: _Words(
        "an embedding whose gradient is zero but for a few rows",
        "is filled, reduced and applied in full",
        "nn.Embedding(sparse=True), with an optimizer that takes sparse gradients (SparseAdam, SGD)",
    ),
    CostlySetting.COMPUTED_AGAIN: _Words(
        "modules called again with the same input and weights in a step",
        "computes the same more than once",
        "keep the output and use it again; for parametrizations, 'with torch.nn.utils.parametrize.cached():' around the step",
    ),
    CostlySetting.BACKWARD_AGAIN: _Words(
        "several passes of backward through the same graph (retain_graph=True) in a step",
        "goes through what the losses have in common for each of them",
        "one backward() of the sum of the losses; if the gradient of each loss is needed, every few steps, or of one layer only",
    ),
    CostlySetting.ZERO_GRADIENTS: _Words(
        "modules whose gradients are all zero",
        "go forward and backward in vain",
        "do not run what has no weight in the loss, or leave it out of the model; if it should be trained, look for what makes "
        "its gradients zero (a weight of 0, a mask, a ReLU that never fires)",
    ),
}
#: Those with a finding of their own (computed_again.py).
_ELSEWHERE: Final = frozenset(
    {CostlySetting.COMPUTED_AGAIN, CostlySetting.BACKWARD_AGAIN, CostlySetting.ZERO_GRADIENTS}
)


class CostlySettings:
    """Debugging aids that are on, and what the model's script had better not do."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, of all that are on."""
        found = costly_settings(facts)
        return [] if found is None else [found]


def costly_settings(facts: Facts) -> Finding | None:
    """What is on, and on which ranks; None where nothing is known to be."""
    told = facts.trace.meta.settings
    on = {rank: [name for name in told.get(rank, ()) if name not in _ELSEWHERE] for rank in facts.ranks}
    ranks = tuple(rank for rank in facts.ranks if on[rank])
    if not ranks:
        return None
    settings = [one for one in CostlySetting if any(str(one) in on[rank] for rank in ranks)]
    who = name_ranks(ranks, max(facts.trace.meta.size, len(facts.ranks)))
    has = "has" if len(ranks) in {1, len(facts.ranks)} else "have"
    said = f"{who} {has} {names_of(settings)}."
    remedy = f"{remedy_of(settings)}; then compare the two runs (tl-diff)."
    evidence = {"on": {str(rank): on[rank] for rank in ranks}}
    cost = cost_of(facts, settings)
    if cost is None:
        sentence = f"{said} What that costs, this run alone cannot tell."
        return plain("compute", "costly-settings", sentence, remedy, ranks=ranks, evidence=evidence)
    saved = f"{milliseconds(cost.outcome.mean_saved_ns)} of each {milliseconds(facts.mean_step_ns)} step"
    rest = "" if len(cost.words) == len(settings) else " What the rest costs, this run alone cannot tell."
    return promise(
        cost.outcome,
        class_="compute",
        cause="costly-settings",
        ranks=ranks,
        confidence=0.5,
        evidence=evidence,
        remedy=remedy,
        sentence=f"{said} That costs about {saved}, if {', and '.join(cost.words)}.{rest}",
    )


def settings_of_one(facts: Facts, row: int) -> list[CostlySetting]:
    """What is on for the rank in a row, and for fewer than half of the others."""
    on = facts.trace.meta.settings
    mine = on.get(facts.ranks[row], ())
    others = [on.get(rank, ()) for number, rank in enumerate(facts.ranks) if number != row]
    return [
        one for one in CostlySetting if str(one) in mine and 2 * sum(str(one) in each for each in others) < len(others)
    ]


def names_of(settings: Sequence[CostlySetting]) -> str:
    """For a sentence."""
    return ", and ".join(f"{_WORDS[one].name}, which {_WORDS[one].effect}" for one in settings)


def remedy_of(settings: Sequence[CostlySetting]) -> str:
    """What switches them off."""
    return "; ".join(_WORDS[one].remedy for one in settings)
