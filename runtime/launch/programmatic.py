"""`run(fn, num_proc=2)`: a function on several ranks, from a script or a notebook.

The function travels as a pickle in a folder that only this user can read, and so do the results: nothing is unpickled that
came over a network.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...timeline.errors import UsageError

_FUNCTION = "function.pickle"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,  # noqa: FBT001
    output_filename: str | None = None,
    verbose: bool | None = None,  # noqa: FBT001
    use_gloo: bool | None = None,  # noqa: FBT001
    use_mpi: bool | None = None,  # noqa: FBT001
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call `func` on several ranks and return what it returns on each, in rank order.

    The arguments are those of `horovod.run`; each stands for the flag of `tl-run` with its name.  The ranks have to see this
    machine's temporary folder, so hosts other than this one need a shared TMPDIR.

    Raises:
        ValueError: arguments that exclude each other.
        RuntimeError: a rank failed; holds its traceback.
    """
    del disable_cache
    if hosts and hostfile:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    num_proc = _newer("np", np, "num_proc", num_proc) or 1
    min_num_proc = _newer("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = _newer("max_np", max_np, "max_num_proc", max_num_proc)
    if network_interface:
        warnings.warn("network_interface is now network_interfaces", DeprecationWarning, stacklevel=2)
        network_interfaces = network_interface.split(",")
    flags: list[str] = ["-np", str(num_proc)]
    for flag, value in (
        ("--min-np", min_num_proc),
        ("--max-np", max_num_proc),
        ("--slots-per-host", slots),
        ("--reset-limit", reset_limit),
        ("-H", hosts),
        ("--hostfile", hostfile),
        ("--host-discovery-script", host_discovery_script),
        ("--start-timeout", start_timeout),
        ("--ssh-port", ssh_port),
        ("--ssh-identity-file", ssh_identity_file),
        ("--output-filename", output_filename),
        ("--mpi-args", mpi_args),
        ("--network-interfaces", ",".join(network_interfaces) if network_interfaces else None),
    ):
        if value is not None:
            flags += [flag, str(value)]
    if cooldown_range:
        flags += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    flags += [flag for flag, wanted in (("--verbose", verbose), ("--gloo", use_gloo), ("--mpi", use_mpi)) if wanted]
    folder = Path(tempfile.mkdtemp(prefix="tlkit-run-"))
    try:
        _pickler().dump_to(folder / _FUNCTION, (func, tuple(args), dict(kwargs or {})))
        interpreter = executable or sys.executable
        command = [sys.executable, "-m", "tlkit.runtime.launch.cli", *flags]
        ended = subprocess.run(  # noqa: S603  our own launcher
            [*command, interpreter, "-m", "tlkit.runtime.launch.programmatic", str(folder)], check=False
        )
        return _results(folder, ended.returncode)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _newer(old_name: str, old: int | None, new_name: str, new: int | None) -> int | None:
    if old is None:
        return new
    warnings.warn(f"{old_name} is deprecated, use {new_name}", DeprecationWarning, stacklevel=3)
    return old if new is None else new


def _results(folder: Path, code: int) -> list[Any]:
    found = {int(path.stem.partition(".")[2]): path for path in folder.glob("result.*.pickle")}
    # The first to fail is the cause; the others have lost a peer.
    failed = sorted(folder.glob("error.*.txt"), key=lambda path: path.stat().st_mtime_ns)
    if code or failed:
        told = "".join(f"\n\n{path.stem.replace('error.', 'rank ')}:\n{path.read_text()}" for path in failed[:1])
        raise RuntimeError(
            "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
            f"terminated. Exit code: {code}{told}"
        )
    return [_pickler().load_from(found[rank]) for rank in sorted(found)]


class _Pickler:
    """cloudpickle, which takes functions of notebooks and `__main__` as well."""

    def __init__(self) -> None:
        try:
            import cloudpickle  # noqa: PLC0415  needed here only
        except ImportError:
            raise UsageError("run() needs cloudpickle: pip install cloudpickle") from None
        self._module: Any = cloudpickle

    def dump_to(self, path: Path, value: Any) -> None:
        scratch = path.with_suffix(".part")
        scratch.write_bytes(self._module.dumps(value))
        scratch.replace(path)

    def load_from(self, path: Path) -> Any:
        return self._module.loads(path.read_bytes())


def _pickler() -> _Pickler:
    return _Pickler()


def _run_as_rank(folder: Path) -> int:
    """On a rank: call the function and leave what it returns, or why it failed."""
    import traceback  # noqa: PLC0415

    func, args, kwargs = _pickler().load_from(folder / _FUNCTION)
    try:
        result = func(*args, **kwargs)
    except BaseException:
        rank = _own_rank()
        with contextlib.suppress(OSError):
            (folder / f"error.{rank}.txt").write_text(traceback.format_exc())
        raise
    _pickler().dump_to(folder / f"result.{_own_rank()}.pickle", result)
    return 0


def _own_rank() -> int:
    """This process's rank: as the runtime counts if it runs, else as the launcher has said."""
    from ..core.topology import read_launched  # noqa: PLC0415

    return read_launched(os.environ).rank


if __name__ == "__main__":
    sys.exit(_run_as_rank(Path(sys.argv[1])))
