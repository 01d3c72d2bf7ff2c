"""What a device's kernels are: the longest, the operators that launched them, the small ones, tensor cores, recomputation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import by_rank
from .arrays import Mask
from .host_calls import Host
from .intervals import Times

#: A kernel shorter than this hardly repays its launch.
SMALL_NS: Final = 10_000
#: Rows of the tables of kernels and operators.
MAX_ROWS: Final = 10

_COPY: Final = re.compile(r"^mem(?:cpy|set)|^copy", re.IGNORECASE)
_ON_TENSOR_CORES: Final = re.compile(
    r"tensorop|[hib]mma|wgmma|xmma_(?:gemm|fprop|dgrad|wgrad)\w*_(?:f16|bf16|tf32|i8|e4m3)|_tf32|s\d{4}(?:gemm|fprop|dgrad|wgrad|_|$)"
    r"|[hs](?:884|1688|16816)|gmma|nvjet|tcgen|bf16x|mxf|_mx[ef]|fmha|flash_?(?:fwd|bwd|attn)|_MI\d+x\d+x\d+",
    re.IGNORECASE,
)
_MATRIX: Final = re.compile(
    r"gemm|cijk_|matmul|bmm|conv(?:olution|2d|3d|_)|fprop|dgrad|wgrad|cutlass|nvjet|fmha|flash|attention", re.IGNORECASE
)
#: Not tensor cores, whatever else the name says: products of single precision on ordinary cores.
_PLAIN: Final = re.compile(r"f32f32_f32f32_f32|sgemm(?!.*(?:tf32|tensorop))|simt|ffma|implicit_convolve_sgemm")
_CHECKPOINT: Final = re.compile(r"CheckpointFunctionBackward|checkpoint\.py\(\d+\): (?:unpack_hook|recompute)")
_NODE: Final = re.compile(r"^autograd::engine::evaluate_function: ")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow:
    """Kernels of one name, or of one operator."""

    name: str
    count: int
    total_ns: int
    share: float
    """Of the time of all kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The kernels of the analysed time, all ranks together; collectives among them."""

    count: int
    total_ns: int
    median_ns: int
    small_ratio: float
    """Share of the kernels that are shorter than SMALL_NS."""
    small_time_ratio: float
    matrix_ratio: float
    """Share of the time that is products of matrices, as far as names tell."""
    tensor_ratio: float
    """Share of the time on tensor cores, as far as names tell."""
    recompute_ns: int
    """Kernels of forward that backward runs once more, as far as names tell."""
    by_name: tuple[KernelRow, ...]
    by_operator: tuple[KernelRow, ...]


def is_copy(names: Sequence[str]) -> Mask:
    """Which activities of a device are copies or fills and no kernels."""
    return np.array([_COPY.search(name) is not None for name in names] or [False], dtype=bool)


def describe_kernels(spans: pd.DataFrame, launches: pd.DataFrame, hosts: dict[int, Host]) -> Kernels:
    """The kernels among what devices have done.

    Args:
        spans: of the streams of devices, of all ranks.
        launches: rows of LAUNCH_COLUMNS.
        hosts: by rank.
    """
    names = [str(name) for name in spans["name"].cat.categories]
    kernels = spans[["rank", "name", "start_ns", "dur_ns"]]
    kernels = kernels[~is_copy(names)[kernels["name"].cat.codes.to_numpy()]] if len(kernels) else kernels
    code = kernels["name"].cat.codes.to_numpy()
    took = kernels["dur_ns"].to_numpy(dtype=np.int64)
    total = int(took.sum())
    by_code = np.bincount(code, weights=took, minlength=len(names)) if len(code) else np.zeros(len(names))
    on_tensor_cores = [bool(_ON_TENSOR_CORES.search(name)) and not _PLAIN.search(name) for name in names]
    is_matrix = [
        bool(_MATRIX.search(name) or _ON_TENSOR_CORES.search(name)) and "nccl" not in name.lower() for name in names
    ]
    small = took < SMALL_NS
    operator, recompute_ns = _by_operator(kernels, launches, hosts)
    return Kernels(
        count=len(kernels),
        total_ns=total,
        median_ns=int(np.median(took)) if len(took) else 0,
        small_ratio=float(small.mean()) if len(took) else 0.0,
        small_time_ratio=float(took[small].sum()) / max(total, 1),
        matrix_ratio=float(by_code[np.array(is_matrix, dtype=bool)].sum()) / max(total, 1) if names else 0.0,
        tensor_ratio=float(by_code[np.array(on_tensor_cores, dtype=bool)].sum()) / max(total, 1) if names else 0.0,
        recompute_ns=recompute_ns,
        by_name=_rows(code, names, took, total),
        by_operator=_rows(*operator, total) if len(operator[0]) else (),
    )


def _rows(code: np.ndarray, names: Sequence[str], took: Times, total: int) -> tuple[KernelRow, ...]:
    counts = np.bincount(code, minlength=len(names))
    sums = np.bincount(code, weights=took, minlength=len(names))
    order = np.argsort(-sums, kind="stable")[:MAX_ROWS]
    return tuple(
        KernelRow(
            name=names[row], count=int(counts[row]), total_ns=int(sums[row]), share=float(sums[row]) / max(total, 1)
        )
        for row in order.tolist()
        if counts[row]
    )


def _by_operator(
    kernels: pd.DataFrame, launches: pd.DataFrame, hosts: dict[int, Host]
) -> tuple[tuple[np.ndarray, list[str], Times], int]:
    """For each kernel whose launch is known the operator that launched it, and the time of recomputation."""
    found: dict[str, int] = {}
    codes, times, recompute_ns = [], [], 0
    kernels_of, launches_of = by_rank(kernels), by_rank(launches)
    for rank, host in hosts.items():
        of_rank, launched = kernels_of.get(rank), launches_of.get(rank)
        if of_rank is None or launched is None:
            continue
        begun = launched["start_ns"].to_numpy()
        order = np.argsort(begun, kind="stable")
        place = np.minimum(np.searchsorted(begun[order], of_rank["start_ns"].to_numpy()), len(order) - 1)
        row = order[place]
        known = (begun[row] == of_rank["start_ns"].to_numpy()) & (launched["launched_ns"].to_numpy()[row] >= 0)
        row, took = row[known], of_rank["dur_ns"].to_numpy(dtype=np.int64)[known]
        threads = {name: number for number, name in enumerate(host.threads)}
        of_code = np.array([threads.get(str(name), -1) for name in launched["thread"].cat.categories], dtype=np.int64)
        thread, at = of_code[launched["thread"].cat.codes.to_numpy()[row]], launched["launched_ns"].to_numpy()[row]
        operator = host.open_at(host.operators, thread, at)
        own = np.array([found.setdefault(_NODE.sub("", name), len(found)) for name in [*host.names, "(no operator)"]])
        codes.append(own[np.where(operator >= 0, host.name[operator], len(host.names))])
        times.append(took)
        recompute_ns += int(took[_is_recomputed(host, thread, at)].sum())
    if not codes:
        return (np.empty(0, dtype=np.int64), [], np.empty(0, dtype=np.int64)), 0
    return (np.concatenate(codes), list(found), np.concatenate(times)), recompute_ns


def _is_recomputed(host: Host, thread: Times, at: Times) -> Mask:
    """Whether a checkpoint computes it anew: launched by the checkpoint's node of autograd, and by no node inside it."""
    recomputing = np.array([_CHECKPOINT.search(name) is not None for name in host.names] or [False], dtype=bool)
    rows = np.flatnonzero(recomputing[host.name]) if len(host.name) else np.empty(0, dtype=np.int64)
    if not len(rows):
        return np.zeros(len(at), dtype=bool)
    inside = host.open_at(rows, thread, at)
    is_node = np.array([_NODE.search(name) is not None for name in host.names], dtype=bool)[host.name]
    nodes = np.flatnonzero(is_node & ~recomputing[host.name])
    nested = host.open_at(nodes, thread, at)
    recomputed: Mask = (inside >= 0) & (
        (nested < 0) | (host.starts[np.maximum(nested, 0)] < host.starts[np.maximum(inside, 0)])
    )
    return recomputed
