"""What every framework's API makes of the same arguments: which reduction is meant, groups of variables, names."""

import warnings
from collections.abc import Sequence
from typing import Any, Final

from . import engine
from .errors import NOT_INITIALIZED, HorovodInternalError
from .operations import ReduceOp
from .process_sets import ProcessSet, global_process_set

Average: Final = int(ReduceOp.AVERAGE)
Sum: Final = int(ReduceOp.SUM)
Adasum: Final = int(ReduceOp.ADASUM)
Min: Final = int(ReduceOp.MIN)
Max: Final = int(ReduceOp.MAX)
Product: Final = int(ReduceOp.PRODUCT)

_REDUCE_OPS: Final = {int(op): op for op in ReduceOp}


def resolve_op(
    op: int | None,
    average: bool | None,  # noqa: FBT001  Horovod's signature
    process_set: ProcessSet = global_process_set,
    *,
    stacklevel: int = 4,
) -> ReduceOp:
    """The reduction that `op` and the older `average` ask for.

    Raises:
        ValueError: both are given, or `op` is no reduction.
        NotImplementedError: Adasum on ranks that it is not for.
    """
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=stacklevel)
        return ReduceOp.AVERAGE if average else ReduceOp.SUM
    if op is None:
        return ReduceOp.AVERAGE
    resolved = _REDUCE_OPS.get(op)
    if resolved is None:
        raise ValueError(f"op={op} is not a reduction: choose hvd.Average, Sum, Min, Max, Product or Adasum")
    if resolved is ReduceOp.ADASUM:
        _check_adasum(process_set)
    return resolved


def _check_adasum(process_set: ProcessSet) -> None:
    if process_set is not global_process_set and process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support non-global process sets at this time.")
    running = engine.current()
    if running is None:
        raise HorovodInternalError(NOT_INITIALIZED)
    if running.topology.size & (running.topology.size - 1):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")


def predivide_scales(op: int, factor: float) -> tuple[float, float]:
    """Prescale and postscale factor of gradients that are divided by `factor` before the sum, and multiplied after.

    Raises:
        ValueError: there is a factor, and the operation is no average.
    """
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    return (1.0 / factor, factor)


def cut_evenly(items: Sequence[Any], count: int) -> list[list[Any]]:
    """`items` in order in so many lists, the first ones longer by one where it does not come out even; none is empty."""
    count = min(count, len(items))
    share, extra = divmod(len(items), count) if count else (0, 0)
    parts, first = [], 0
    for number in range(count):
        last = first + share + (number < extra)
        parts.append(list(items[first:last]))
        first = last
    return parts


def settle_groups(groups: Any, num_groups: int, *, stacklevel: int = 3) -> Any:
    """What `groups` and its older name, `num_groups`, ask for."""
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning, stacklevel=stacklevel)
        return num_groups if groups is None else groups
    return groups


def resolve_groups(groups: Any, variables: Sequence[Any], kind: type | tuple[type, ...], what: str) -> list[list[Any]]:
    """Groups of variables that are reduced together, by identity.

    Args:
        groups: a number, lists of variables, or None for no groups.
        variables: that are trained; others are left out.
        kind: class of the variables.
        what: how that is called in an error.

    Raises:
        ValueError: `groups` is neither a positive number nor lists of distinct variables.
    """
    if groups is None:
        return []
    wrong = f"groups should be a non-negative integer or a list of list of {what}."
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError(wrong)
        return cut_evenly(variables, groups)
    try:
        lists = [list(group) for group in groups]
    except TypeError:
        raise ValueError(wrong) from None
    flat = [variable for group in lists for variable in group]
    if any(not isinstance(variable, kind) for variable in flat):
        raise ValueError(wrong)
    if len({id(variable) for variable in flat}) < len(flat):
        raise ValueError("A parameter can only appear once in groups.")
    known = {id(variable) for variable in variables}
    return [group for group in ([v for v in group if id(v) in known] for group in lists) if group]


def distinct(names: Sequence[str]) -> list[str]:
    """The names, where one that has been there before gets a number."""
    taken: set[str] = set()
    made = []
    for name in names:
        new, number = name, 1
        while new in taken:
            number += 1
            new = f"{name}_{number}"
        taken.add(new)
        made.append(new)
    return made
