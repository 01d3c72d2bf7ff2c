"""The ranks of a training with tf.distribute.MultiWorkerMirroredStrategy: which one this is, and where they meet.

TF_CONFIG names the tasks; what they have to tell each other is kept by TensorFlow's coordination service, which the strategy
starts.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: How long a rank waits for the others to record with it.
_PATIENCE_MS: Final = 60_000

#: Tasks that train, in the order of their ranks.
_TRAINING: Final = ("chief", "worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A rank of a cluster."""

    rank: int
    size: int


def read_task(environment: Mapping[str, str] = os.environ) -> Task | None:
    """The rank that this process is by its TF_CONFIG; None if it is none of several that train."""
    try:
        config = json.loads(environment.get("TF_CONFIG") or "{}")
        cluster, task = config["cluster"], config["task"]
        counts = {kind: len(cluster.get(kind, ())) for kind in _TRAINING}
        kind, index = str(task["type"]), int(task["index"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    size = sum(counts.values())
    if kind not in counts or not 0 <= index < counts[kind] or size == 1:
        return None
    return Task(rank=index + (counts["chief"] if kind == "worker" else 0), size=size)


def has_met() -> bool:
    """Whether the strategy has been made, at which all ranks meet."""
    return "tensorflow" in sys.modules and _context().coordination_service is not None


class CoordinationStore:
    """What ranks tell each other; every key once."""

    def __init__(self, prefix: str) -> None:
        """Keep all under a prefix."""
        self._prefix = prefix

    def set(self, key: str, value: str) -> None:
        """Say something.

        Raises:
            RuntimeError: the service is gone.
        """
        self._ask(_context().set_config_key_value, key, value)

    def get(self, key: str) -> str:
        """What somebody says, or will have said in a minute.

        Raises:
            RuntimeError: nobody did.
        """
        return str(self._ask(_context().get_config_key_value, key, _PATIENCE_MS))

    def _ask(self, function: Any, key: str, argument: Any) -> Any:
        errors = sys.modules["tensorflow"].errors
        try:
            return function(f"{self._prefix}/{key}", argument)
        except errors.OpError as error:
            raise RuntimeError(error.message) from error


def _context() -> Any:
    from tensorflow.python.eager import context  # noqa: PLC0415  nothing public leads to it, and only those with TensorFlow have it

    return context.context()
