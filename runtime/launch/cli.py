"""The command `tl-run`."""

import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from ...timeline.errors import TlkitError, UsageError
from .check_build import describe_build
from .hosts import check_slots, parse_hosts, read_hostfile
from .options import make_parser, read_config_file, settings_of
from .workers import Workers

_LOOPBACK = "127.0.0.1"

#: What a shell answers for a file that is no program, and for a command that it does not find.
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127

#: Variables of ours that are not for the ranks: functions of the shell, and what another launcher said about its job,
#: which would make rank 0 wait for that launcher's store.
_KEPT_BACK = ("BASH_FUNC_", "TORCHELASTIC_")


def rank_environments(
    ranks: int, inherited: Mapping[str, str], settings: Mapping[str, str], port: int
) -> list[dict[str, str]]:
    """The environment of every rank: Horovod's names, and torchrun's, so that plain torch.distributed scripts run too.

    What the launcher knows wins over what was inherited: a stale HOROVOD_RANK must not make every rank the same.
    """
    run_id = secrets.token_hex(8)
    environments = []
    for rank in range(ranks):
        environment = {**inherited, **settings}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
        numbers = {
            "RANK": rank,
            "SIZE": ranks,
            "LOCAL_RANK": rank,
            "LOCAL_SIZE": ranks,
            "CROSS_RANK": 0,
            "CROSS_SIZE": 1,
        }
        environment |= {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
        environment |= {
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": _LOOPBACK,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(port),
            "TLKIT_RUN_ID": run_id,
            "PYTHONUNBUFFERED": "1",
        }
        environments.append(environment)
    return environments


def _free_port() -> int:
    """A port that is free now.

    Somebody else could take it before rank 0 does; the kernel hands out ports in an order that makes this unlikely, and
    rank 0 says so clearly if it happens.
    """
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-run`; returns its exit status."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except TlkitError as error:
        print(f"tl-run: {error}", file=sys.stderr)
        return error.exit_code


def _run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(argv)
    if arguments.check_build:
        print(describe_build())
        return 0
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if arguments.np is None:
        raise UsageError("how many ranks?  Add -np N")
    if arguments.np < 1:
        raise UsageError(f"-np {arguments.np}: at least one rank is needed")
    if not command:
        raise UsageError("what to run?  Add a command, as in `tl-run -np 2 python train.py`")
    _refuse_what_is_missing(arguments)
    settings: dict[str, str] = {}
    if arguments.config_file:
        settings, unknown = read_config_file(arguments.config_file, any_controller=arguments.gloo)
        for key in unknown:
            print(f"tl-run: {arguments.config_file}: {key} is not a setting and has no effect", file=sys.stderr)
    settings |= settings_of(arguments)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_BACK)}
    environments = rank_environments(arguments.np, inherited, settings, _free_port())
    if arguments.verbose:
        _describe(command, settings, environments[0])
    return _supervise(arguments, command, environments)


def _refuse_what_is_missing(arguments: object) -> None:
    """Flags that this version knows and cannot do.

    Raises:
        UsageError: one of them was given.
    """
    given = vars(arguments)
    ranks = given["np"]
    if given["mpi"] or given["jsrun"]:
        flag = "--mpi" if given["mpi"] else "--jsrun"
        raise UsageError(
            f"{flag}: this version starts ranks on this machine itself, and moves data with Gloo; leave {flag} out, or run "
            f"`mpirun -np {ranks} python train.py`, whose ranks the runtime recognises"
        )
    if given["host_discovery_script"] or given["min_np"] is not None:
        raise UsageError(
            "elastic training is not in this version, which starts a fixed number of ranks on this machine only: leave "
            "out --host-discovery-script and --min-np, or start the script with torchrun, which the runtime recognises"
        )
    if given["hosts"] and given["hostfile"]:
        raise UsageError("-H and --hostfile exclude each other")
    if given["hosts"]:
        check_slots(parse_hosts(given["hosts"]), ranks)
    elif given["hostfile"]:
        check_slots(read_hostfile(given["hostfile"]), ranks)
    if find_spec("torch") is None:
        raise UsageError("the runtime needs PyTorch, which is not installed here: pip install torch")


def _describe(command: Sequence[str], settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    print(f"tl-run: starting {environment['HOROVOD_SIZE']} x {' '.join(command)}", file=sys.stderr)
    origin = "as you set it" if "OMP_NUM_THREADS" in os.environ else "cores / ranks, as you did not set it"
    print(f"tl-run: OMP_NUM_THREADS={environment['OMP_NUM_THREADS']} ({origin})", file=sys.stderr)
    for name, value in sorted(settings.items()):
        print(f"tl-run: {name}={value}", file=sys.stderr)


def _supervise(arguments: object, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> int:
    given = vars(arguments)
    workers = Workers(output_folder=given["output_filename"], prefix_timestamp=given["prefix_timestamp"])
    program = shutil.which(command[0], path=environments[0].get("PATH"))
    if program is None and Path(command[0]).is_file():
        meant = f"did you mean `tl-run … python {command[0]}`?"
        print(f"tl-run: {command[0]} is not executable: {meant}", file=sys.stderr)
        return _NOT_EXECUTABLE
    if program is None:
        print(f"tl-run: {command[0]}: no such command", file=sys.stderr)
        return _NOT_FOUND
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # What was ignored stays so: nohup asks for that.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: workers.stop(received))
    try:
        workers.start([program, *command[1:]], environments)
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error}") from error
    return workers.wait()


if __name__ == "__main__":
    sys.exit(main())
