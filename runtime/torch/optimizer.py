"""`DistributedOptimizer`: an optimizer whose gradients are reduced over all ranks while backward still runs."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from .. import instrument
from ..process_sets import ProcessSet, global_process_set
from .basics import size
from .compression import Compression
from .mpi_ops import (
    Average,
    allgather_async,
    allreduce_async_,
    grouped_allreduce_async_,
)
from .submission import synchronize, wait_for_all

_ZERO_GRAD: Final = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
_TOO_MANY_BACKWARDS: Final = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
_TWICE: Final = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you use "
    "optimizer.synchronize() in your code."
)

Finish = Callable[[], None]
"""Puts the reduced values of a parameter or group into `.grad`."""


class _Reduction:
    """The reductions of one optimizer: which gradient is under way, which is due."""

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        *,
        compression: Any,
        passes: int,
        op: int,
        predivide_factor: float,
        groups: list[list[torch.Tensor]],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.names = names
        self.compression = compression
        self.passes = passes
        self.op = op
        self.scales = (1.0 / predivide_factor, predivide_factor) if op == Average else (1.0, 1.0)
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.delay = dict.fromkeys(names, passes)
        self.under_way: dict[torch.Tensor, tuple[list[int], Finish]] = {}
        self.group_of = {parameter: group for group in groups for parameter in group}

    def gradient_is_ready(self, parameter: torch.Tensor) -> None:
        """A backward pass has accumulated into `parameter.grad`."""
        if parameter in self.under_way or self.delay[parameter] <= 0:
            raise AssertionError(_TOO_MANY_BACKWARDS)
        self.delay[parameter] -= 1
        if self.delay[parameter] == 0:
            self.start(parameter)

    def start(self, parameter: torch.Tensor) -> None:
        """Start to reduce a gradient, or its group if it is the last of it."""
        group = self.group_of.get(parameter)
        if group is None:
            self.under_way[parameter] = self._start_single(parameter)
        elif all(self.delay[member] == 0 for member in group):
            self._start_group(group)

    def start_missing(self) -> None:
        """Start what backward did not reach: a parameter that was not used counts as zeros."""
        for parameter in self.names:
            if parameter in self.under_way:
                continue
            self.delay[parameter] = 0
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self.start(parameter)

    def _start_single(self, parameter: torch.Tensor) -> tuple[list[int], Finish]:
        name, gradient = self.names[parameter], parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            if not self.sparse_as_dense:
                return self._start_sparse(parameter, gradient, name)
            gradient = gradient.to_dense()
        sent, context = self.compression.compress(gradient)
        sent = sent.contiguous()
        handle = allreduce_async_(sent, None, name, self.op, *self.scales, process_set=self.process_set)

        def finish() -> None:
            self._store(parameter, synchronize(handle), context)

        return [handle], finish

    def _start_group(self, group: list[torch.Tensor]) -> None:
        packed = []
        for parameter in group:
            gradient = parameter.grad
            assert gradient is not None
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            sent, context = self.compression.compress(gradient)
            packed.append((parameter, sent.contiguous(), context))
        handle = grouped_allreduce_async_(
            [sent for _, sent, _ in packed],
            None,
            self.names[group[0]],
            self.op,
            *self.scales,
            process_set=self.process_set,
        )

        def finish() -> None:
            for (parameter, _, context), reduced in zip(packed, synchronize(handle), strict=True):
                self._store(parameter, reduced, context)

        for parameter in group:
            self.under_way[parameter] = ([], lambda: None)
        self.under_way[group[0]] = ([handle], finish)

    def _start_sparse(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str) -> tuple[list[int], Finish]:
        """Gather indices and values of all ranks; that is the sum, as a sparse tensor."""
        coalesced = gradient.coalesce()
        # The ranks' indices are joined along the first dimension, so each row is one index.
        indices = coalesced.indices().t().contiguous()
        handles = [
            allgather_async(indices, f"{name}.indices", self.process_set),
            allgather_async(coalesced.values().contiguous(), f"{name}.values", self.process_set),
        ]

        def finish() -> None:
            all_indices, all_values = (synchronize(handle) for handle in handles)
            if self.op == Average:
                all_values = all_values / (self.process_set.size() or 1)
            parameter.grad = torch.sparse_coo_tensor(
                all_indices.t(), all_values, gradient.shape, check_invariants=False
            )

        return handles, finish

    def _store(self, parameter: torch.Tensor, reduced: torch.Tensor, context: Any) -> None:
        result = self.compression.decompress(reduced, context)
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            parameter.grad = result.to_sparse(gradient.sparse_dim())
        elif result.data_ptr() != gradient.data_ptr():
            with torch.no_grad():
                gradient.copy_(result)

    def finish(self) -> None:
        """Wait for everything that is under way and put it into the gradients."""
        started, self.under_way = self.under_way, {}
        self.delay = dict.fromkeys(self.names, self.passes)
        wait_for_all([handle for handles, _ in started.values() for handle in handles])
        for _, finish in started.values():
            finish()

    def forget(self) -> None:
        """Drop what is under way, as after loading a state."""
        if self.under_way:
            self.finish()
        self.delay = dict.fromkeys(self.names, self.passes)


class _DistributedOptimizer(torch.optim.Optimizer):
    """Mixed in front of the user's optimizer class by `DistributedOptimizer`."""

    _tlkit_distributed = True
    _reduction: _Reduction
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
        self._reduction.passes = passes
        self._reduction.forget()

    def synchronize(self) -> None:
        """Wait until all gradients are reduced.  A parameter that backward did not reach takes part with zeros."""
        if size() > 1:
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
        if self._reduction.under_way:
            raise AssertionError(_ZERO_GRAD)
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state; reductions that are under way are finished and forgotten."""
        self._reduction.forget()
        self._synchronized = False
        super().load_state_dict(state_dict)


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


def _resolve_groups(
    groups: int | Sequence[Sequence[torch.Tensor]] | None, parameters: list[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """Groups of parameters that are reduced together.

    Raises:
        ValueError: `groups` is neither a positive number nor lists of distinct parameters.
    """
    if groups is None:
        return []
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        count = min(groups, len(parameters))
        share, extra = divmod(len(parameters), count) if count else (0, 0)
        cut, first = [], 0
        for number in range(count):
            last = first + share + (number < extra)
            cut.append(parameters[first:last])
            first = last
        return cut
    lists = [list(group) for group in groups]
    flat = [parameter for group in lists for parameter in group]
    if any(not isinstance(parameter, torch.Tensor) for parameter in flat):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    if len({id(parameter) for parameter in flat}) < len(flat):
        raise ValueError("A parameter can only appear once in groups.")
    known = {id(parameter) for parameter in parameters}
    return [group for group in ([p for p in group if id(p) in known] for group in lists) if group]


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
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: divide by it before the sum and multiply after; for Average only.
        num_groups: older name of `groups` as a number.
        groups: reduce parameters together, in so many groups or in the given ones.
        sparse_as_dense: turn sparse gradients into dense ones first.

    Raises:
        ValueError: an argument makes no sense.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = _names(optimizer, named_parameters)
    trained = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
    base = type(optimizer)
    # The name stays, since scripts and schedulers look at it; the module is where Horovod's would be.
    new_class: type = type(base.__name__, (_DistributedOptimizer, base), {"__module__": __name__})
    distributed: Any = object.__new__(new_class)
    distributed.__dict__.update(optimizer.__dict__)
    # A scheduler made before may have put a `step` bound to the original on the instance.
    distributed.__dict__.pop("step", None)
    distributed._patch_step_function()  # noqa: SLF001  what Optimizer.__init__ does for a new class
    distributed._synchronized = False  # noqa: SLF001
    distributed._should_synchronize = True  # noqa: SLF001
    reduction = _Reduction(
        trained,
        compression=compression,
        passes=backward_passes_per_step,
        op=op,
        predivide_factor=gradient_predivide_factor,
        groups=_resolve_groups(groups, list(trained)),
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    distributed._reduction = reduction  # noqa: SLF001
    if size() > 1:
        for parameter in trained:
            register: Any = parameter.register_post_accumulate_grad_hook
            register(reduction.gradient_is_ready)
    return distributed
