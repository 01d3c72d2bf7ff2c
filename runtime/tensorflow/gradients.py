"""The reduction of a list of gradients, for the tape and the optimizers alike.

Dense gradients of a group are reduced in one piece of memory, small ones of which travel to Python packed into one tensor; sparse
ones go, outside of the groups, through an operation of their own.  Local gradients stay here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from ..core import elastic_client
from ..core.arguments import predivide_scales, resolve_groups, resolve_op, settle_groups
from ..core.calls import GRADIENT
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, global_process_set
from ..core.variable_names import VariableSet, names_of, split
from ..torch.flat import FlatReduction, Parcel, gather_sparse, takes_part
from .compression import Compression
from .operands import check_dtype, compress_all, decompress_all, set_size, to_tensor
from .packing import pack, plan, unpack
from .queries import size_op
from .reduce_operations import check_sparse
from .running import refuse_xla, require_registered, rows_unknown, run, run_ahead
from .values import REDUCIBLE

#: A group of fewer bytes is not worth a collective of its own, whose time hardly depends on its bytes then.
MIN_GROUP_NBYTES: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Settings:
    """How gradients are reduced (see `DistributedGradientTape` for the arguments)."""

    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: ReduceOp = ReduceOp.AVERAGE
    scales: tuple[float, float] = (1.0, 1.0)
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scale_local: bool = True


def make_settings(
    *,
    compression: Any,
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    num_groups: int,
    groups: Any,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    stacklevel: int = 4,
) -> Settings:
    """Settings out of a wrapper's arguments.

    Raises:
        ValueError: they make no sense.
    """
    groups = settle_groups(groups, num_groups, stacklevel=stacklevel)
    resolve_groups(groups, [], object, "tf.Variable")
    return Settings(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=resolve_op(op, None, process_set),
        scales=predivide_scales(op, gradient_predivide_factor),
        groups=groups,
        process_set=process_set,
        scale_local=scale_local_gradients,
    )


def _joined(groups: list[list[int]], gradients: Sequence[Any]) -> list[list[int]]:
    """Groups in order, where small ones go along with the next, and a small last one with the one before."""
    made: list[list[int]] = []
    nbytes = MIN_GROUP_NBYTES
    for group in groups:
        if nbytes < MIN_GROUP_NBYTES:
            made[-1] = [*group, *made[-1]]
        else:
            made.append(group)
            nbytes = 0
        nbytes += sum(_nbytes(gradients[place]) for place in group)
    if len(made) > 1 and nbytes < MIN_GROUP_NBYTES:
        last = made.pop()
        made[-1] = [*last, *made[-1]]
    return made


def _nbytes(gradient: Any) -> int:
    """Bytes of a dense gradient, as far as they are known before it is there."""
    return int((gradient.shape.num_elements() or 0) * gradient.dtype.size)


class Reductions:
    """Reductions of lists of gradients by the names of their variables and by their settings; the newest ones."""

    MAX_KEPT: Final = 16

    def __init__(self) -> None:
        """Know none."""
        self._kept: dict[Any, FlatReduction] = {}

    def get(
        self, names: tuple[str, ...], parcels: tuple[Parcel, ...], settings: Settings, *, agree: bool
    ) -> FlatReduction:
        """The one for these names, which come in these parcels, made if there is none."""
        # By the process set itself, which the reduction keeps alive.
        key = (names, parcels, settings.op, settings.scales, id(settings.process_set), agree)
        reduction = self._kept.pop(key, None)
        if reduction is None:
            reduction = FlatReduction(
                names, settings.op, settings.scales, settings.process_set, agree=agree, parcels=parcels
            )
        self._kept[key] = reduction
        if len(self._kept) > self.MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return reduction


class Gradients:
    """Reduces lists of gradients."""

    def __init__(self, settings: Settings, reductions: "Reductions | None" = None) -> None:
        """Prepare.

        Args:
            settings: how they are reduced.
            reductions: what is known of such reductions, for whoever makes one of these every step.
        """
        self.settings = settings
        self.local = VariableSet()
        """Variables whose gradients stay on their rank."""
        self._reductions = Reductions() if reductions is None else reductions

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], *, generic_names: bool = False) -> list[Any]:
        """The gradients over all ranks, in order; None stays None, and local ones are scaled."""
        refuse_xla()
        settings = self.settings
        require_registered(settings.process_set)
        local, shared = split(variables, self.local)
        results = list(gradients)
        for place in local:
            results[place] = self.scale_local(gradients[place])
        if not elastic_client.is_elastic() and not takes_part(settings.process_set):
            return results
        names = [f"grad_{place}" for place in range(len(variables))] if generic_names else names_of(variables)
        there = [place for place in shared if gradients[place] is not None]
        if settings.sparse_as_dense:
            for place in there:
                if isinstance(results[place], tf.IndexedSlices):
                    results[place] = tf.convert_to_tensor(results[place])
        sparse = [place for place in there if isinstance(results[place], tf.IndexedSlices)]
        dense = [place for place in there if place not in set(sparse)]
        if dense:
            self._reduce_dense(self.group(dense, variables, results), names, results, agree=not generic_names)
        if sparse:
            self._reduce_sparse(sparse, names, results)
        return results

    def reduce_if(self, due: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """As `reduce`; the caller sees to it that it runs only where it is `due`."""
        del due
        return self.reduce(gradients, variables)

    def group(self, places: list[int], variables: Sequence[Any], gradients: Sequence[Any]) -> list[list[int]]:
        """Places by group; those at the end of the model first, since backward begins there.

        Groups that were asked for by number alone are as large as is worth a collective; what no group was asked for is one, too.
        """
        groups = self.settings.groups
        if groups is None:
            return [places]
        by_identity = {id(variables[place]): place for place in places}
        chosen = [variables[place] for place in places]
        made = [
            [by_identity[id(variable)] for variable in group]
            for group in resolve_groups(groups, chosen, object, "tf.Variable")
        ]
        made.reverse()
        if isinstance(groups, int):
            return _joined(made, gradients)
        grouped = {place for group in made for place in group}
        rest = [place for place in places if place not in grouped]
        return [*made, rest] if rest else made

    def _reduce_dense(self, groups: list[list[int]], names: list[str], results: list[Any], *, agree: bool) -> None:
        compression = self.settings.compression
        sent, contexts, parcels, reductions = [], [], [], []
        for places in groups:
            tensors, of_group = compress_all([to_tensor(results[place]) for place in places], compression)
            check_dtype(tensors, REDUCIBLE, "the reduction of gradients")
            packed = plan(tensors)
            chosen = tuple(names[place] for place in places)
            # One for all traces of a function, and for all steps that are not traced: what it has learned stays.
            reductions.append(self._reductions.get(chosen, packed, self.settings, agree=agree))
            sent.append(tensors)
            contexts.append(of_group)
            parcels.append(packed)
        inputs = [pack(tensors, packed) for tensors, packed in zip(sent, parcels, strict=True)]
        if len(groups) == 1:
            reduced = [run(reductions[0], inputs[0], [(tensor.dtype, tensor.shape) for tensor in inputs[0]], GRADIENT)]
        else:
            reduced = run_ahead(reductions, inputs)
        for number, places in enumerate(groups):
            gradients = unpack(reduced[number], parcels[number], sent[number])
            for place, gradient in zip(places, decompress_all(gradients, contexts[number], compression), strict=True):
                results[place] = gradient

    def _reduce_sparse(self, places: list[int], names: list[str], results: list[Any]) -> None:
        settings = self.settings
        check_sparse(settings.op, (1.0, 1.0))  # an average is divided once, whatever the factor
        gather = gather_sparse(
            [names[place] for place in places],
            average=settings.op is ReduceOp.AVERAGE,
            process_set=settings.process_set,
        )
        flat = [to_tensor(part) for place in places for part in (results[place].values, results[place].indices)]
        gathered = run(gather, flat, [(tensor.dtype, rows_unknown(tensor)) for tensor in flat], GRADIENT)
        for number, place in enumerate(places):
            values, indices = gathered[2 * number : 2 * number + 2]
            results[place] = tf.IndexedSlices(values, indices, results[place].dense_shape)

    def scale_local(self, gradient: Any) -> Any:
        """A gradient that stays on its rank: the others' are averages over the ranks, of which it is one."""
        if gradient is None or not self.settings.scale_local:
            return gradient
        process_set = self.settings.process_set
        size: Any = set_size(process_set)
        if elastic_client.is_elastic():
            size = size_op(process_set.process_set_id or 0)
        elif size == 1:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(size, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(size, gradient.dtype)
