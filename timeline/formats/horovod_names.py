"""Who asked for a tensor, as far as the name says that Horovod's bindings have given it.

Horovod writes no callers.  Its optimizers name gradients after their parameters or after what they do themselves
(`DistributedOptimizer_Allreduce/…`), `broadcast_parameters` names parameters, objects travel as a length (`.sz`) and
bytes (`.t`), and calls without a name are numbered.  What remains may be anybody's.
"""

import re
from collections.abc import Collection, Iterable
from typing import Final

_NORM: Final = re.compile(r"sync_batch_norm", re.IGNORECASE)
_OBJECT: Final = re.compile(r"\.(sz|t)$")
_UNNAMED: Final = re.compile(r"^\w+\.noname\.\d+(_\d+of\d+)?$")
#: `allreduce.allreduce.noname.0.3` is a gradient of an optimizer that was given no names.
_GRADIENT: Final = re.compile(
    r"DistributedOptimizer|DistributedGradientTape|DistributedTrainer|grad(ient)?s?([_./:\d]|$)|^allreduce\.allreduce\.noname\.\d+\.\d+$"
    r"|[._/](weight|bias|kernel|gamma|beta|embeddings?|in_proj_weight|in_proj_bias|weight_[ih]h_l\d+|bias_[ih]h_l\d+)(:\d+)?$",
    re.IGNORECASE,
)
#: Buffers of modules, and what optimizers keep of each parameter.
_STATE: Final = re.compile(
    r"[._](running_mean|running_var|num_batches_tracked)$|HorovodBroadcast_"
    r"|^broadcast\.(param_groups?|momentum_buffer|exp_avg|exp_avg_sq|max_exp_avg_sq|square_avg|step)\b"
)
_METRIC: Final = re.compile(
    r"(^|[._/ -])(avg|mean|total|train|val|valid|test|eval)?[._]?(loss|acc|accuracy|metrics?|auc|f1|top[15]|error|perplexity)\b",
    re.IGNORECASE,
)


def parameters_of(names: Iterable[str]) -> frozenset[str]:
    """Names of parameters: what was both broadcast and reduced under the same name is one."""
    broadcast, reduced = set(), set()
    for name in names:
        kind, _, rest = name.partition(".")
        if kind == "broadcast":
            broadcast.add(rest)
        elif kind == "allreduce":
            reduced.add(rest)
    return frozenset(name for name in broadcast & reduced if not name.startswith("noname"))


def caller_of(name: str, kind: str, parameters: Collection[str] = ()) -> str:
    """One of vocabulary.CALLERS; "" where the name does not tell.

    Args:
        name: of the tensor, as in the timeline.
        parameters: see `parameters_of`.

    >>> caller_of("allreduce.layer1.weight", "allreduce"), caller_of("allreduce.noname.4", "allreduce")
    ('gradient', 'user')
    """
    rest = name.partition(".")[2]
    is_parameter = rest in parameters or _GRADIENT.search(name) is not None
    rules = (
        ("barrier", kind == "barrier"),
        ("norm", _NORM.search(name)),
        ("object", kind in {"broadcast", "allgather"} and _OBJECT.search(name)),
        ("user", _UNNAMED.match(name)),
        ("parameters", kind == "broadcast" and (is_parameter or _STATE.search(name))),
        ("gradient", kind == "allreduce" and is_parameter),
        ("user", kind != "broadcast" and _METRIC.search(rest or name)),
    )
    return next((caller for caller, applies in rules if applies), "")
