"""Collectives of tf.distribute.MultiWorkerMirroredStrategy, which TensorFlow's own runtime executes.

Marks are put before and after each while a function is traced.  Several may wait to begin at the same time; they end one after
the other, on all ranks in the order in which they were traced, which TensorFlow sees to: so they are numbered as they end.
"""

import threading
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher
from tensorflow.python.ops import control_flow_util

from ...timeline.record import recorder
from ...timeline.record.shard_format import Call, describe_calls
from ...timeline.vocabulary import Category, LaneKind
from .patching import Patches
from .phases import phases

_patches = Patches()

#: By the method that launches it.
_KINDS: Final = {"all_reduce": "ALLREDUCE", "_all_gather": "ALLGATHER"}

_GRADIENT: Final = Call("gradient", blocking=True)
#: Metrics, the loss, statistics of a norm: whoever reads a variable that is kept by every rank.
_VALUE: Final = Call("metric", blocking=True)


class _Numbers:
    """How many collectives have ended in this recording."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer: Any = None
        self._next = 0
        self.last_end_ns = 0

    def take(self) -> int:
        """The number of this one."""
        with self._lock:
            writer = recorder.timeline()
            if writer is not self._writer:
                self._writer, self._next, self.last_end_ns = writer, 0, 0
            self._next += 1
            return self._next - 1


_numbers = _Numbers()


class _Marks:
    """What is noted of one collective of a graph, every time that it runs."""

    def __init__(self, kind: str, dtype: str, call: Call) -> None:
        self._kind = kind
        self._itemsize = tf.as_dtype(dtype).size
        self._args = {"process_set": 0, "dtype": dtype, "algorithm": "tensorflow", **describe_calls((call,))}
        self._is_gradient = call is _GRADIENT
        self._begun_ns = self._numel = 0

    def begin(self, numel: Any) -> None:
        """Its input is there."""
        if not recorder.is_on():
            return
        if phases.inside and self._is_gradient:
            phases.gradients()
        self._begun_ns, self._numel = recorder.now_ns(), int(numel)

    def end(self) -> None:
        """Its result is there."""
        begun_ns, self._begun_ns = self._begun_ns, 0
        writer = recorder.timeline()
        if not begun_ns or writer is None:
            return
        end_ns, seq = recorder.now_ns(), _numbers.take()
        args = self._args | {
            "seq": seq,
            "bytes": self._numel * self._itemsize,
            "submitted": writer.ts(begun_ns),
        }
        start_ns = min(max(begun_ns, _numbers.last_end_ns), end_ns)
        _numbers.last_end_ns = end_ns
        recorder.complete(LaneKind.COMMUNICATION, Category.COLLECTIVE, self._kind, start_ns, end_ns, args)
        if phases.inside:
            phases.waited(begun_ns, end_ns, {"name": self._kind, "seq": seq, "process_set": 0})


def install() -> None:
    """Record what the strategy's replicas launch."""
    for name, kind in _KINDS.items():
        _patches.replace(CollectiveReplicaLauncher, name, _recorded(getattr(CollectiveReplicaLauncher, name), kind))


def uninstall() -> None:
    """Put back what was there; functions that were traced keep their marks, which do nothing then."""
    _patches.restore()


def _recorded(original: Any, kind: str) -> Any:
    def recorded(self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        call = _GRADIENT if phases.traced_updates else _VALUE
        marks = _Marks(kind, input_tensor.dtype.name, call)
        if tf.executing_eagerly():
            marks.begin(tf.size(input_tensor))
            made = original(self, input_tensor, *args, **kwargs)
            made.numpy()  # which is there when the ranks have met
            marks.end()
            return made
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            return original(self, input_tensor, *args, **kwargs)
        with tf.control_dependencies([input_tensor]):
            begun = tf.numpy_function(marks.begin, [tf.size(input_tensor, out_type=tf.int64)], [])
        with tf.control_dependencies([begun]):
            made = original(self, input_tensor, *args, **kwargs)
        with tf.control_dependencies([made]):
            tf.numpy_function(marks.end, [], [])
        return made

    recorded.__wrapped__ = original  # type: ignore[attr-defined]
    return recorded
