"""How the gradients of a Keras optimizer are reduced, by the backend that Keras uses.

All have the same shape: `reduce(gradients, variables)` hands out the gradients over all ranks in order, `local` holds variables
whose gradients stay on their rank, `scale_local` divides such a gradient by the number of ranks.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch

from ..core.arguments import predivide_scales, resolve_groups, resolve_op, settle_groups
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet
from ..core.variable_names import VariableSet, names_of, split
from ..torch.flat import FlatReduction, gather_sparse, takes_part
from .library import keras


class GradientReducer(Protocol):
    """What reduces the gradients of an optimizer."""

    local: VariableSet

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients over all ranks, in order; None stays None, and local ones are scaled."""

    def reduce_if(self, due: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients over all ranks where `due`, which is known when the step runs; whatever, otherwise."""


def make_reducer(
    *,
    compression: Any,
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    num_groups: int,
    groups: Any,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    stacklevel: int = 5,
) -> GradientReducer:
    """What reduces on the backend of this process.

    Raises:
        ValueError: an argument makes no sense.
    """
    if keras.backend.backend() == "tensorflow":
        from ..tensorflow.gradients import Gradients, make_settings  # noqa: PLC0415  with this backend alone

        settings = make_settings(
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
            stacklevel=stacklevel,
        )
        reducer: GradientReducer = Gradients(settings)
        return reducer
    groups = settle_groups(groups, num_groups, stacklevel=stacklevel)
    resolve_groups(groups, [], object, "keras.Variable")  # all gradients are one group here
    arguments: dict[str, Any] = {
        "op": resolve_op(op, None, process_set),
        "scales": predivide_scales(op, gradient_predivide_factor),
        "dtype": _dtype_on_the_wire(compression),
        "sparse_as_dense": sparse_as_dense,
        "process_set": process_set,
        "scale_local": scale_local_gradients,
    }
    if keras.backend.backend() == "torch":
        return TorchGradients(**arguments)
    if keras.backend.backend() == "jax":
        from .jax_gradients import JaxGradients  # noqa: PLC0415  with this backend alone

        return JaxGradients(**arguments)
    raise NotImplementedError(
        f"the backend {keras.backend.backend()} of Keras cannot train: use tensorflow, torch or jax"
    )


#: What the compressors of all frameworks are called.
_ON_THE_WIRE: Final = {"FP16Compressor": torch.float16, "BF16Compressor": torch.bfloat16}


def _dtype_on_the_wire(compression: Any) -> torch.dtype | None:
    """What floating gradients are sent as; None for what they are.

    Raises:
        ValueError: a compressor of the user's, which is for tensors of TensorFlow.
    """
    name = compression.__name__
    if name == "NoneCompressor":
        return None
    if name not in _ON_THE_WIRE:
        raise ValueError(f"compression={name} is for Keras on TensorFlow; hvd.Compression has none, fp16 and bf16")
    return _ON_THE_WIRE[name]


class PlainGradients:
    """Reduces gradients that are tensors of torch, or memory that one can be made of."""

    def __init__(
        self,
        *,
        op: ReduceOp,
        scales: tuple[float, float],
        dtype: torch.dtype | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        scale_local: bool,
    ) -> None:
        """Prepare (see `DistributedOptimizer`).

        Args:
            op: the reduction.
            scales: prescale and postscale factor.
            dtype: what floating gradients are sent as; None for what they are.
            sparse_as_dense: whether sparse gradients are made dense first.
            process_set: the ranks over which it is reduced.
            scale_local: whether gradients that stay are divided by the number of ranks.
        """
        self.local = VariableSet()
        self.op, self.scales, self.dtype = op, scales, dtype
        self.sparse_as_dense, self.process_set, self._scale_local = sparse_as_dense, process_set, scale_local
        self._reductions: dict[tuple[str, ...], FlatReduction] = {}

    def scale_local(self, gradient: Any) -> Any:
        """A gradient that stays on its rank: the others' are averages over the ranks, of which it is one."""
        size = self.process_set.size() or 1
        return gradient if gradient is None or not self._scale_local or size == 1 else gradient / size

    def reduce_dense(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Reduce dense gradients."""
        chosen = tuple(names)
        reduction = self._reductions.get(chosen)
        if reduction is None:
            reduction = FlatReduction(chosen, self.op, self.scales, self.process_set)
            self._reductions[chosen] = reduction
        sent = [self._compressed(tensor) for tensor in tensors]
        reduced = reduction(sent)
        return [result.to(tensor.dtype) for result, tensor in zip(reduced, tensors, strict=True)]

    def _compressed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.dtype is None or not tensor.is_floating_point() else tensor.to(self.dtype)


class TorchGradients(PlainGradients):
    """For Keras on torch."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """See `GradientReducer`."""
        local, shared = split(variables, self.local)
        results = list(gradients)
        for place in local:
            results[place] = self.scale_local(gradients[place])
        if not takes_part(self.process_set):
            return results
        names = names_of(variables)
        there = [place for place in shared if gradients[place] is not None]
        sparse = [place for place in there if gradients[place].is_sparse and not self.sparse_as_dense]
        dense = [place for place in there if place not in set(sparse)]
        with torch.no_grad():
            plain = [gradients[place].detach() for place in dense]
            plain = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in plain]
            reduced = self.reduce_dense([names[place] for place in dense], plain) if dense else []
            for place, gradient in zip(dense, reduced, strict=True):
                results[place] = gradient
            for place in sparse:
                results[place] = self._reduce_sparse(names[place], gradients[place])
        return results

    def _reduce_sparse(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        coalesced = gradient.detach().coalesce()
        gather = gather_sparse([name], average=self.op is ReduceOp.AVERAGE, process_set=self.process_set)
        values, indices = gather([coalesced.values().contiguous(), coalesced.indices().t().contiguous()])
        return torch.sparse_coo_tensor(
            indices.t(), values, gradient.shape, device=values.device, check_invariants=False
        )

    def reduce_if(self, due: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """See `GradientReducer`."""
        return self.reduce(gradients, variables) if bool(due) else list(gradients)
