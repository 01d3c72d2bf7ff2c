"""What scripts import from `horovod.common.util`."""

import importlib.metadata
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ..core.errors import HorovodVersionMismatchError, get_version_mismatch_message
from ..torch.basics import ccl_built as _ccl_built
from ..torch.basics import check_extension, gpu_available, num_rank_is_power_2
from ..torch.basics import cuda_built as _cuda_built
from ..torch.basics import ddl_built as _ddl_built
from ..torch.basics import rocm_built as _rocm_built
from ..torch.data_plane import transports

EXTENSIONS: Final = ("tensorflow", "torch")


def gloo_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002  Horovod's signature
    """Whether Gloo can move the bytes."""
    del verbose
    return True


def mpi_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether MPI can move the bytes."""
    del verbose
    return transports.mpi.is_built()


def nccl_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether NCCL can move the bytes."""
    del verbose
    return transports.nccl.is_built()


def ddl_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether IBM DDL can move the bytes."""
    del verbose
    return _ddl_built()


def ccl_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether oneCCL can move the bytes."""
    del verbose
    return _ccl_built()


def cuda_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether tensors on CUDA devices are taken."""
    del verbose
    return _cuda_built()


def rocm_built(verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether tensors on ROCm devices are taken."""
    del verbose
    return _rocm_built()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether a framework is supported and here: PyTorch is, TensorFlow where it is installed."""
    del verbose
    return ext_base_name == "torch" or (ext_base_name == "tensorflow" and find_spec("tensorflow") is not None)


def get_ext_suffix() -> str:
    """How the name of a compiled module ends."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where Horovod has a compiled module."""
    return str(Path(pkg_path).parent.joinpath(*args[:-1], args[-1] + get_ext_suffix()))


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Warn if a framework is not of the version that is installed, as one for which nothing was compiled.

    Args:
        name: of the framework.
        version: that it says of itself.
        exception: what has gone wrong.

    Raises:
        HorovodVersionMismatchError: the versions differ, and something has gone wrong.
    """
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        installed = None
    if installed is None or version.partition("+")[0] == installed.partition("+")[0]:
        return
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, installed) from exception
    warnings.warn(get_version_mismatch_message(name, version, installed), stacklevel=2)


def is_version_greater_equal_than(version: str, target: str) -> bool:
    """Whether one version is another or later; both as `1.2.3`.

    Raises:
        ValueError: one has another form.
    """
    numbers = [[int(part) for part in each.partition("+")[0].split(".")[:3]] for each in (version, target)]
    return numbers[0] >= numbers[1]


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """What turns `op` and the older `average` of a collective into one reduction.

    Args:
        reduce_ops: has `Average` and `Sum`.
    """

    def resolve(op: Any, average: bool | None) -> Any:  # noqa: FBT001  Horovod's signature
        if op is not None and average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        if op is None:
            return reduce_ops.Sum if average is False else reduce_ops.Average
        return op

    return resolve


def is_iterable(x: object) -> bool:
    """Whether one can go through it."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def split_list(items: Sequence[Any], num_parts: int) -> list[list[Any]]:
    """Cut a list into parts of equal length, the first ones longer by one where it does not come out even."""
    share, rest = divmod(len(items), num_parts)
    parts, first = [], 0
    for number in range(num_parts):
        last = first + share + (number < rest)
        parts.append(list(items[first:last]))
        first = last
    return parts


@contextmanager
def env(**variables: Any) -> Iterator[None]:
    """Have environment variables set, or unset where None, inside the block."""
    before: Mapping[str, str | None] = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, Any]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)


__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]
