"""What the operations of TensorFlow share: tensors out of anything, compression, which dtypes are taken."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..core.process_sets import ProcessSet


def to_tensor(value: Any) -> Any:
    """A tensor of TensorFlow: of a variable of it or of Keras, an array, a list, a number."""
    return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)


def to_tensors(values: Any, operation: str) -> list[Any]:
    """Several.

    Raises:
        ValueError: it is a single tensor, which is ambiguous.
    """
    if isinstance(values, (tf.Tensor, tf.Variable)):
        raise ValueError(f"{operation} takes a list of tensors")
    return [value if isinstance(value, tf.IndexedSlices) else to_tensor(value) for value in values]


def check_dtype(tensors: Sequence[Any], taken: frozenset[Any], operation: str) -> None:
    """Raise for a dtype that an operation does not take.

    Raises:
        TypeError: as TensorFlow does for its own operations.
    """
    for tensor in tensors:
        if tensor.dtype not in taken:
            raise TypeError(
                f"{operation} takes no tensor of {tensor.dtype.name}, only of {', '.join(sorted(dtype.name for dtype in taken))}"
            )


def compress_all(tensors: Sequence[Any], compression: Any) -> tuple[list[Any], list[Any]]:
    """Tensors as they are sent, and what `decompress_all` needs."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def decompress_all(tensors: Sequence[Any], contexts: Sequence[Any], compression: Any) -> list[Any]:
    """Tensors as they were before `compress_all`."""
    return [compression.decompress(tensor, context) for tensor, context in zip(tensors, contexts, strict=True)]


def is_differentiable(tensors: Sequence[Any]) -> bool:
    """Whether gradients can flow through any of them."""
    return any(tensor.dtype.is_floating for tensor in tensors)


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
    """The results of `forward`, whose gradients `backward` makes.

    Args:
        forward: of the tensors, to a list.
        backward: of the results' gradients and the keyword `results`, to the gradients of the tensors.
    """
    if not is_differentiable(tensors):
        return list(forward(*tensors))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def with_gradient(*inputs: Any) -> Any:
        results = forward(*inputs)

        def gradient(*upstream: Any) -> Any:
            made = backward(*upstream, results=results)
            return made if len(inputs) > 1 else made[0]

        return tuple(results), gradient

    return list(with_gradient(*tensors))


def set_size(process_set: ProcessSet) -> int:
    """How many ranks a process set has; 1 before it is known."""
    return process_set.size() or 1
