"""Steps of TensorFlow: what `tf.data` makes the training wait for, tapes, and functions that are whole steps.

Marks are put into a function while it is traced, if this is installed then; each is an operation of some microseconds.  A
function that XLA compiles gets none, and shows as one part.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.ops import control_flow_util

from ...timeline.record import recorder
from ...timeline.vocabulary import DATA_WAIT, Category, LaneKind
from . import pipelines
from .compilations import compiled
from .patching import Patches
from .phases import phases
from .steps import tracker

_patches = Patches()


def install() -> None:
    """Record data loading, forward and backward, and the functions around them."""
    _wrap_iterators()
    _wrap_tape()
    original = polymorphic_function.Function.__call__

    def recorded_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_on() or not tf.executing_eagerly() or not (phases.inside or recorder.is_training_thread()):
            return original(self, *args, **kwargs)
        traced, start_ns = _times_traced(self), recorder.now_ns()
        with phases.call(self):
            result = original(self, *args, **kwargs)
        if _times_traced(self) != traced:
            compiled(start_ns, recorder.now_ns(), str(getattr(self, "__name__", "")))
        return result

    recorded_call.__wrapped__ = original  # type: ignore[attr-defined]
    _patches.replace(polymorphic_function.Function, "__call__", recorded_call)


def _times_traced(function: Any) -> int:
    """How often a function was traced; 0 where a version of TensorFlow does not tell."""
    count = getattr(function, "experimental_get_tracing_count", None)
    return count() if callable(count) else 0


def uninstall() -> None:
    """Put back what was there; functions that were traced keep their marks, which do nothing then."""
    _patches.restore()


def mark(noted: Callable[[], None], after: Sequence[Any]) -> None:
    """Have a graph call `noted` when some tensors are there."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return

    def in_python() -> None:
        if recorder.is_on() and phases.inside:
            noted()

    wanted = [tensor for tensor in tf.nest.flatten(list(after)) if isinstance(tensor, (tf.Tensor, tf.IndexedSlices))]
    with tf.control_dependencies([each.values if isinstance(each, tf.IndexedSlices) else each for each in wanted]):
        tf.numpy_function(in_python, [], [])


def _wrap_iterators() -> None:
    original = iterator_ops.OwnedIterator.__init__

    def recorded_init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if tf.executing_eagerly() and recorder.is_training_thread():
            pipelines.watch(self)

    recorded_init.__wrapped__ = original  # type: ignore[attr-defined]
    _patches.replace(iterator_ops.OwnedIterator, "__init__", recorded_init)
    for name in ("__next__", "get_next", "get_next_as_optional"):
        _wrap_iterator(name, getattr(iterator_ops.OwnedIterator, name))


def _wrap_iterator(name: str, original: Any) -> None:
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            return _in_graph(self, original, args, kwargs)
        if not recorder.is_on() or not recorder.is_training_thread() or _Asking.depth:
            return original(self, *args, **kwargs)
        tracker.touch()
        opened = recorder.begin(Category.DATA, DATA_WAIT, LaneKind.DATA, {"workers": 0}, payload=0)
        _Asking.depth += 1
        try:
            batch = original(self, *args, **kwargs)
        except (StopIteration, tf.errors.OutOfRangeError):
            recorder.discard(opened)
            raise
        except BaseException as error:
            recorder.end(opened, {"error": type(error).__name__})
            raise
        finally:
            _Asking.depth -= 1
        recorder.end(opened)
        return batch

    recorded.__wrapped__ = original  # type: ignore[attr-defined]
    _patches.replace(iterator_ops.OwnedIterator, name, recorded)


class _Asking:
    """How deep the training thread is in an iterator: its methods call each other."""

    depth = 0
    asked_ns = 0


def _in_graph(iterator: Any, original: Any, args: Any, kwargs: Any) -> Any:
    if _Asking.depth or control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return original(iterator, *args, **kwargs)

    def asks() -> None:
        _Asking.asked_ns = recorder.now_ns()

    def has_got() -> None:
        if recorder.is_on() and phases.inside and _Asking.asked_ns:
            phases.batch(_Asking.asked_ns, recorder.now_ns())

    asked = tf.numpy_function(asks, [], [])
    _Asking.depth += 1
    try:
        with tf.control_dependencies([asked]):
            batch = original(iterator, *args, **kwargs)
    finally:
        _Asking.depth -= 1
    variants = [batch._variant_tensor] if isinstance(batch, tf.experimental.Optional) else tf.nest.flatten(batch)  # noqa: SLF001
    tensors = [each for each in variants if isinstance(each, tf.Tensor)]
    if tensors:
        with tf.control_dependencies(tensors):
            tf.numpy_function(has_got, [], [])
    return batch


def _wrap_tape() -> None:
    original_enter, original_gradient = tf.GradientTape.__enter__, tf.GradientTape.gradient

    def recorded_enter(self: Any) -> Any:
        if tf.executing_eagerly() and recorder.is_on() and recorder.is_training_thread():
            phases.begin()
        return original_enter(self)

    def recorded_gradient(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            mark(phases.loss, [target])
            return original_gradient(self, target, *args, **kwargs)
        if not recorder.is_on() or not recorder.is_training_thread():
            return original_gradient(self, target, *args, **kwargs)
        phases.loss()
        made = original_gradient(self, target, *args, **kwargs)
        phases.gradients_of_tape()
        return made

    _patches.replace(tf.GradientTape, "__enter__", recorded_enter)
    _patches.replace(tf.GradientTape, "gradient", recorded_gradient)
