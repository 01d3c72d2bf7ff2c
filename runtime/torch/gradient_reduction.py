"""The reductions of one optimizer: which gradient is due, which is under way, and how it is sent.

Most gradients travel in buckets (`buckets.py`).  Those that are compressed, sparse, in groups of the user's or of an unusual
layout travel on their own.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core import arguments
from ..core.calls import GRADIENT, handing_on
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet
from .buckets import Bucket, can_be_laid_out, lay_out
from .compression import Compression
from .gathering import allgather_async
from .operands import Adasum, Average
from .prepared import wait_for_handles
from .reduce_operations import allreduce_async_, grouped_allreduce_async_
from .submission import require_running, synchronize, wait_for_all
from .watching import TOO_MANY_BACKWARDS, BucketWatch

Finish = Callable[[], None]
"""Puts the reduced values of a parameter or group into `.grad`."""


class GradientReduction:
    """Reduces the gradients of some parameters once every `passes` backward passes."""

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
        """Prepare (see `DistributedOptimizer` for the arguments); `watch` begins.

        Args:
            names: of the parameters, in the order of the model.
        """
        self.names = names
        self.passes = passes
        self._compression = compression
        self._op = op
        self._predivide_factor = predivide_factor
        self._scales = arguments.predivide_scales(op, predivide_factor)
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._group_of = {parameter: group for group in groups for parameter in group}
        self._delay = dict.fromkeys(names, passes)
        self._under_way: dict[torch.Tensor, tuple[list[int], Finish]] = {}
        self._buckets: list[Bucket] = []
        self._single: list[torch.Tensor] = list(names)
        self._watches: list[BucketWatch] = []
        self._hooks: list[Any] = []
        """For the gradients that travel alone."""

    @property
    def watches(self) -> bool:
        """Whether gradients are reduced at all: not on a rank alone or outside the process set."""
        return bool(self._watches or self._hooks)

    @property
    def has_begun(self) -> bool:
        """Whether some gradient is being reduced or waits for others of its bucket."""
        return bool(self._under_way) or any(bucket.has_begun for bucket in self._buckets)

    def watch(self) -> None:
        """Reduce from now on what backward produces."""
        if self._compression is Compression.none and self._op != Adasum and not self._group_of:
            fitting = {parameter: name for parameter, name in self.names.items() if can_be_laid_out(parameter)}
            self._buckets = lay_out(
                fitting,
                op=ReduceOp(self._op),
                predivide_factor=self._predivide_factor,
                most_nbytes=require_running().config.fusion_threshold_nbytes,
                process_set=self._process_set,
            )
            self._single = [parameter for parameter in self.names if parameter not in fitting]
        self._watches = [BucketWatch(bucket, self._delay, self._launch) for bucket in self._buckets]
        for watch in self._watches:
            watch.watch_all(learn=self.passes == 1)
        for parameter in self._single:
            register: Any = parameter.register_post_accumulate_grad_hook
            self._hooks.append(register(self._single_hook))

    def unwatch(self) -> None:
        """Leave gradients alone from now on."""
        for watch in self._watches:
            watch.stop()
        for hook in self._hooks:
            hook.remove()
        self._watches, self._hooks = [], []

    def _single_hook(self, parameter: torch.Tensor) -> None:
        if parameter in self._under_way or self._delay[parameter] <= 0:
            raise AssertionError(TOO_MANY_BACKWARDS)
        self._delay[parameter] -= 1
        if self._delay[parameter] == 0:
            self._start(parameter)

    def _launch(self, bucket: Bucket) -> None:
        def start_sparse(place: int) -> bool:
            if self._sparse_as_dense:
                return False
            parameter = bucket.parameters[place]
            with handing_on(GRADIENT):
                self._under_way[parameter] = self._start_sparse(parameter)
            return True

        bucket.launch(start_sparse)

    def _start(self, parameter: torch.Tensor) -> None:
        """Start to reduce a gradient, or its group if it is the last of it."""
        group = self._group_of.get(parameter)
        with handing_on(GRADIENT):
            if group is None:
                self._under_way[parameter] = self._start_single(parameter)
            elif all(self._delay[member] == 0 for member in group):
                self._start_group(group)

    def start_missing(self) -> None:
        """Start what backward did not reach: a parameter that was not used counts as zeros."""
        for bucket in self._buckets:
            if bucket.launched is None:
                self._launch(bucket)
        for parameter in self._single:
            if parameter in self._under_way:
                continue
            self._delay[parameter] = 0
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._start(parameter)

    def _start_single(self, parameter: torch.Tensor) -> tuple[list[int], Finish]:
        name, gradient = self.names[parameter], parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            if not self._sparse_as_dense:
                return self._start_sparse(parameter)
            gradient = gradient.to_dense()
        sent, context = self._compression.compress(gradient)
        sent = sent.contiguous()
        handle = allreduce_async_(sent, None, name, self._op, *self._scales, process_set=self._process_set)

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
            sent, context = self._compression.compress(gradient)
            packed.append((parameter, sent.contiguous(), context))
        handle = grouped_allreduce_async_(
            [sent for _, sent, _ in packed],
            None,
            self.names[group[0]],
            self._op,
            *self._scales,
            process_set=self._process_set,
        )

        def finish() -> None:
            for (parameter, _, context), reduced in zip(packed, synchronize(handle), strict=True):
                self._store(parameter, reduced, context)

        for parameter in group:
            self._under_way[parameter] = ([], lambda: None)
        self._under_way[group[0]] = ([handle], finish)

    def _start_sparse(self, parameter: torch.Tensor) -> tuple[list[int], Finish]:
        """Gather indices and values of all ranks; that is the sum, as a sparse tensor."""
        gradient, name = parameter.grad, self.names[parameter]
        assert gradient is not None
        coalesced = gradient.coalesce()
        # The ranks' indices are joined along the first dimension, so each row is one index.
        indices = coalesced.indices().t().contiguous()
        handles = [
            allgather_async(indices, f"{name}.indices", self._process_set),
            allgather_async(coalesced.values().contiguous(), f"{name}.values", self._process_set),
        ]

        def finish() -> None:
            all_indices, all_values = (synchronize(handle) for handle in handles)
            if self._op == Average:
                all_values = all_values / (self._process_set.size() or 1)
            parameter.grad = torch.sparse_coo_tensor(
                all_indices.t(), all_values, gradient.shape, device=gradient.device, check_invariants=False
            )

        return handles, finish

    def _store(self, parameter: torch.Tensor, reduced: torch.Tensor, context: Any) -> None:
        result = self._compression.decompress(reduced, context)
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            parameter.grad = result.to_sparse(gradient.sparse_dim())
        elif result.data_ptr() != gradient.data_ptr():
            with torch.no_grad():
                gradient.copy_(result)

    def finish(self) -> None:
        """Wait for everything that is under way and put it into the gradients."""
        started, self._under_way = self._under_way, {}
        launched = [watch for watch in self._watches if watch.bucket.launched is not None]
        self._reset()
        wait_for_handles([watch.bucket.launched for watch in launched if watch.bucket.launched is not None])
        wait_for_all([handle for handles, _ in started.values() for handle in handles])
        for watch in launched:
            if watch.bucket.was_touched():
                warnings.warn(TOO_MANY_BACKWARDS, stacklevel=4)
                watch.watch_all(learn=False)
            watch.bucket.finish()
        for _, finish in started.values():
            finish()

    def _reset(self) -> None:
        for parameter in self._delay:
            self._delay[parameter] = self.passes

    def set_passes(self, passes: int) -> None:
        """Reduce once every `passes` backward passes from now on."""
        self.passes = passes
        self.forget()
        for watch in self._watches:
            watch.watch_all(learn=passes == 1)

    def forget(self) -> None:
        """Drop what is under way, as after loading a state."""
        if self.has_begun:
            self.finish()
        for bucket in self._buckets:
            bucket.remaining = len(bucket.parameters)
        self._reset()


def resolve_groups(
    groups: int | Sequence[Sequence[torch.Tensor]] | None, parameters: list[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """Groups of parameters that are reduced together (see `core.arguments.resolve_groups`)."""
    return arguments.resolve_groups(groups, parameters, torch.Tensor, "torch.Tensor")
