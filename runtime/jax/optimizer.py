"""An optimizer of optax whose gradients are those of all ranks."""

from typing import Any

from .operations import Average, reduce_tree


def DistributedOptimizer(optimizer: Any, op: int = Average, name: str = "gradient") -> Any:  # noqa: N802  the name that users know
    """A gradient transformation that reduces gradients over all ranks before `optimizer` sees them.

    Inside of `jax.jit` and outside; a step ends in the timeline when its gradients are reduced.

    Args:
        optimizer: an `optax.GradientTransformation`, with or without extra arguments.
        op: Average, Sum, Min, Max or Product.
        name: what the gradients are called in the timeline, before their places in the tree.

    Raises:
        ImportError: optax is not installed.
    """
    try:
        import optax  # noqa: PLC0415  who only wants allreduce needs none
    except ImportError as error:
        raise ImportError("DistributedOptimizer wraps an optimizer of optax: pip install optax") from error
    inner = optax.with_extra_args_support(optimizer)

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        reduced = reduce_tree(gradients, op, name, caller="gradient", ends_step=True)
        updates: tuple[Any, Any] = inner.update(reduced, state, params, **extra)
        return updates

    return optax.GradientTransformationExtraArgs(inner.init, update)
