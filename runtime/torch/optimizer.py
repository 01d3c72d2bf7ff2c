"""`DistributedOptimizer`: an optimizer whose gradients are reduced over all ranks while backward still runs."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from .. import instrument, tuning
from ..core.arguments import predivide_scales, settle_groups
from ..core.process_sets import ProcessSet, global_process_set
from .adasum_optimizer import AdasumOptimizer
from .basics import size
from .compression import Compression
from .gradient_reduction import GradientReduction, resolve_groups
from .operands import Adasum, Average, resolve_op

_ZERO_GRAD: Final = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
_TWICE: Final = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you use "
    "optimizer.synchronize() in your code."
)


class _DistributedOptimizer(torch.optim.Optimizer):
    """Mixed in front of the user's optimizer class by `DistributedOptimizer`."""

    _tlkit_distributed = True
    _reduction: GradientReduction
    _parameter_names: dict[torch.Tensor, str]
    """Read by scripts that know Horovod's optimizer."""
    _synchronized: bool
    _should_synchronize: bool

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed before one reduction."""
        return self._reduction.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change `backward_passes_per_step`; takes effect at once.

        Raises:
            ValueError: not positive.
        """
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._reduction.set_passes(passes)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced.  A parameter that backward did not reach takes part with zeros."""
        if self._reduction.watches:
            self._reduction.start_missing()
            self._reduction.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, `step` does not call `synchronize`, because the caller has."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronise the gradients and update the parameters."""
        if self._should_synchronize and closure is None:
            if self._synchronized:
                warnings.warn(_TWICE, stacklevel=2)
            self.synchronize()
        self._synchronized = False
        if closure is not None:
            closure = self._synchronizing(closure)
        with instrument.optimizer_span(self):
            result = super().step(closure)
        instrument.step_boundary(self)
        return result

    # torch wraps the `step` of a class to run the optimizer's hooks, unless it is marked as wrapped; it has wrapped the
    # inner one, so that a hook runs once a step, when the gradients are reduced.
    step.hooked = True  # type: ignore[attr-defined]

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """`closure`, with its gradients reduced before the optimizer sees them."""

        def wrapped() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        return wrapped

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002  torch's signature
        """Clear the gradients.

        Raises:
            AssertionError: they are being reduced.
        """
        if self._reduction.has_begun:
            raise AssertionError(_ZERO_GRAD)
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state; reductions that are under way are finished and forgotten."""
        self._reduction.forget()
        self._synchronized = False
        super().load_state_dict(state_dict)


#: Horovod's name for it, which scripts ask with `isinstance`.
_DistributedAdasumOptimizer = AdasumOptimizer


def _all_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Name of every parameter of the optimizer.

    Raises:
        ValueError: the names are not unique, or do not cover all parameters.
    """
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{group_number}.{position}"
            for group_number, group in enumerate(optimizer.param_groups)
            for position, parameter in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    duplicates = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if duplicates:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(duplicates)}"
        )
    by_parameter = {parameter: name for name, parameter in pairs}
    unnamed = [parameter for parameter in _all_parameters(optimizer) if parameter not in by_parameter]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. Python object ids: "
            + ", ".join(str(id(parameter)) for parameter in unnamed)
        )
    return {parameter: by_parameter[parameter] for parameter in _all_parameters(optimizer)}


def _as_subclass(optimizer: torch.optim.Optimizer, mixin: type) -> Any:
    """The same optimizer, of a new class that derives from `mixin` and from its own class.

    The name stays, since scripts and schedulers look at it; the module is where Horovod's would be.
    """
    base = type(optimizer)
    new_class: type = type(base.__name__, (mixin, base), {"__module__": __name__})
    distributed: Any = object.__new__(new_class)
    distributed.__dict__.update(optimizer.__dict__)
    # A scheduler made before may have put a `step` bound to the original on the instance.
    distributed.__dict__.pop("step", None)
    distributed._patch_step_function()  # noqa: SLF001  what Optimizer.__init__ does for a new class
    return distributed


def _adasum_optimizer(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    compression: Any,
    passes: int,
    process_set: ProcessSet,
) -> Any:
    """An optimizer that combines steps instead of gradients.

    Raises:
        NotImplementedError: for a process set, or a number of ranks that is no power of two.
    """
    resolve_op(Adasum, None, process_set)
    distributed = _as_subclass(optimizer, AdasumOptimizer)
    distributed._compression = compression  # noqa: SLF001
    distributed._names = distributed._parameter_names = names  # noqa: SLF001
    distributed._passes = passes  # noqa: SLF001
    return distributed


def DistributedOptimizer(  # noqa: N802  Horovod's name and arguments
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,  # noqa: FBT001, FBT002
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Make `optimizer` reduce its gradients over all ranks.

    Returns an optimizer of a new class that has the name of the original's class and derives from it, with the same
    parameters, options and state.

    Args:
        named_parameters: names for the parameters, the same on all ranks.
        compression: how gradients are sent, one of `Compression`.
        backward_passes_per_step: how many backward passes to sum locally before a reduction.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: divide by it before the sum and multiply after; for Average only.
        num_groups: older name of `groups` as a number.
        groups: reduce parameters together, in so many groups or in the given ones.
        sparse_as_dense: turn sparse gradients into dense ones first.

    Raises:
        ValueError: an argument makes no sense.
    """
    predivide_scales(op, gradient_predivide_factor)
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    groups = settle_groups(groups, num_groups)
    wanted = tuning.compression_name()
    compression = compression if wanted is None else getattr(Compression, wanted)
    names = _names(optimizer, named_parameters)
    trained = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
    if op == Adasum and size() > 1:
        return _adasum_optimizer(optimizer, trained, compression, backward_passes_per_step, process_set)
    distributed = _as_subclass(optimizer, _DistributedOptimizer)
    distributed._parameter_names = names  # noqa: SLF001
    distributed._synchronized = False  # noqa: SLF001
    distributed._should_synchronize = True  # noqa: SLF001
    reduction = GradientReduction(
        trained,
        compression=compression,
        passes=backward_passes_per_step,
        op=op,
        predivide_factor=gradient_predivide_factor,
        groups=resolve_groups(groups, list(trained)),
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    distributed._reduction = reduction  # noqa: SLF001
    earlier = getattr(optimizer, "_reduction", None)
    if isinstance(earlier, GradientReduction):
        earlier.unwatch()  # of two wrappers only the outer one may reduce
    if size() > 1 and process_set.included():
        reduction.watch()
    return distributed
