"""The flags of `tl-run`: horovodrun's, and the settings that each of them makes."""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ... import __version__
from ...timeline.commands.arguments import Parser, with_completion
from ...timeline.errors import UsageError
from .flags import add_flags_of_hosts, add_flags_of_output, add_flags_of_transport

_DESCRIPTION: Final = """\
Start a training script on several ranks, on this machine or on other hosts.  A Horovod script runs unchanged: `import
horovod.torch as hvd` imports tlkit's runtime unless Horovod itself is installed.

  tl-run -np 2 python train.py
  tl-run -np 4 --timeline-filename t.json python train.py && tl-analyze t.json
  tl-run -np 8 -H worker-0:4,worker-1:4 python train.py
  tl-run -np 4 --mpi python train.py
"""

_EPILOG: Final = """\
Ranks started by mpirun, torchrun or srun are recognised as well.
Exit status: that of the first rank that fails (128 + n if signal n ended it), 2 for wrong usage, otherwise 0.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag that sets an environment variable of the ranks."""

    flag: str
    variable: str
    kind: Any
    help: str
    key: str = ""
    """Where the configuration file has it, e.g. `params.cycle_time_ms`."""
    scale: int = 1
    highest: float = math.inf


_SWITCH: Final = "switch"

SETTINGS: Final = (
    Setting(
        "timeline-filename",
        "HOROVOD_TIMELINE",
        str,
        "write a timeline to this file; with t.json, rank 0 writes t.json, rank 1 t.rank1.json and so on",
        "timeline.filename",
    ),
    Setting(
        "timeline-mark-cycles",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        _SWITCH,
        "mark negotiation cycles on the timeline",
        "timeline.mark_cycles",
    ),
    Setting(
        "fusion-threshold-mb",
        "HOROVOD_FUSION_THRESHOLD",
        int,
        "fuse tensors up to this many MiB (default 128)",
        "params.fusion_threshold_mb",
        1024 * 1024,
    ),
    Setting(
        "cycle-time-ms",
        "HOROVOD_CYCLE_TIME",
        float,
        "wait this long for more tensors before negotiating (default 1)",
        "params.cycle_time_ms",
    ),
    Setting(
        "cache-capacity",
        "HOROVOD_CACHE_CAPACITY",
        int,
        "number of negotiated tensors to remember (default 8192)",
        "params.cache_capacity",
    ),
    Setting(
        "hierarchical-allreduce",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        _SWITCH,
        "reduce within each host first, then across hosts",
        "params.hierarchical_allreduce",
    ),
    Setting(
        "hierarchical-allgather",
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        _SWITCH,
        "no effect here, with a warning",
        "params.hierarchical_allgather",
    ),
    Setting(
        "torus-allreduce",
        "HOROVOD_TORUS_ALLREDUCE",
        _SWITCH,
        "no effect here, with a warning",
        "params.torus_allreduce",
    ),
    Setting(
        "autotune",
        "HOROVOD_AUTOTUNE",
        _SWITCH,
        "search for the best fusion threshold and cycle time",
        "autotune.enabled",
    ),
    Setting(
        "autotune-log-file",
        "HOROVOD_AUTOTUNE_LOG",
        str,
        "write the settings that autotune tried to this file, as CSV",
        "autotune.log_file",
    ),
    Setting(
        "autotune-warmup-samples",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        int,
        "number of samples to leave out at the start of autotune (default 3)",
        "autotune.warmup_samples",
    ),
    Setting(
        "autotune-steps-per-sample",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        int,
        "number of steps per autotune score (default 10)",
        "autotune.steps_per_sample",
    ),
    Setting(
        "autotune-bayes-opt-max-samples",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        int,
        "number of settings that autotune tries (default 20)",
        "autotune.bayes_opt_max_samples",
    ),
    Setting(
        "autotune-gaussian-process-noise",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        float,
        "noise that autotune assumes in scores, 0 to 1 (default 0.8)",
        "autotune.gaussian_process_noise",
        highest=1,
    ),
    Setting(
        "stall-check-warning-time-seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        int,
        "warn if a tensor waits this many seconds for a rank (default 60)",
        "stall_check.warning_time_seconds",
    ),
    Setting(
        "stall-check-shutdown-time-seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        int,
        "end the job if a tensor waits this many seconds (default never)",
        "stall_check.shutdown_time_seconds",
    ),
    Setting(
        "mpi-threads-disable",
        "HOROVOD_MPI_THREADS_DISABLE",
        _SWITCH,
        "no effect here, with a warning",
        "library_options.mpi_threads_disable",
    ),
    Setting(
        "num-nccl-streams",
        "HOROVOD_NUM_NCCL_STREAMS",
        int,
        "no effect here, with a warning",
        "library_options.num_nccl_streams",
    ),
    Setting(
        "thread-affinity",
        "HOROVOD_THREAD_AFFINITY",
        int,
        "pin the runtime's thread of each local rank to a core",
        "library_options.thread_affinity",
    ),
    Setting(
        "gloo-timeout-seconds",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        int,
        "abort a collective after this many seconds without progress (default 30)",
        "library_options.gloo_timeout_seconds",
    ),
    Setting(
        "log-level",
        "HOROVOD_LOG_LEVEL",
        str,
        "level of the runtime's log: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
        "logging.level",
    ),
    Setting(
        "start-timeout", "HOROVOD_START_TIMEOUT", int, "wait this many seconds for all ranks to start (default 30)"
    ),
)

#: Keys of the configuration file whose variable says the opposite.
_INVERTED: Final = (
    Setting("stall_check.enabled", "HOROVOD_STALL_CHECK_DISABLE", _SWITCH, "", "stall_check.enabled"),
    Setting("logging.with_timestamp", "HOROVOD_LOG_HIDE_TIME", _SWITCH, "", "logging.with_timestamp"),
)

#: Titles of the groups of flags, by section of the configuration file; "" for all others.
_GROUPS: Final = {
    "timeline": "timeline",
    "params": "fusion, cycle, cache and hierarchy",
    "autotune": "autotune",
    "stall_check": "stall check",
    "": "more settings of the runtime",
}

_LOG_LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-run`."""
    parser = Parser(
        prog="tl-run",
        usage="tl-run -np N [flags] command [its arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-v", "--version", action="version", version=f"tl-run {__version__}")
    add("-cb", "--check-build", action="store_true", help="show the features of this installation, and exit")
    add("--config-file", metavar="FILE", help="read settings from this YAML file; flags override them")
    what = parser.add_argument_group("ranks and hosts")
    what.add_argument("-np", "--num-proc", type=int, dest="np", metavar="N", help="number of ranks to start")
    what.add_argument("-H", "--hosts", help="hosts and slots, such as worker-0:4,worker-1:4 (default: this machine)")
    what.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="read hosts from this file, one line `name slots=N` per host"
    )
    what.add_argument("command", nargs=argparse.REMAINDER, help="the command to run, with its arguments")
    add_flags_of_transport(parser)
    add_flags_of_output(parser)
    add_flags_of_hosts(parser)
    add_settings(parser)
    return with_completion(parser)


def add_settings(parser: Any) -> None:
    """Add a flag for each setting, in groups by the section that it has in the configuration file."""
    groups = {}
    for section, title in _GROUPS.items():
        groups[section] = parser.add_argument_group(f"{title} (each flag sets a HOROVOD_* variable)")
    for setting in SETTINGS:
        group = groups.get(setting.key.partition(".")[0], groups[""])
        destination = setting.variable
        if setting.kind is _SWITCH:
            group.add_argument(
                f"--{setting.flag}", action="store_const", const="1", dest=destination, help=setting.help
            )
            group.add_argument(
                f"--no-{setting.flag}", action="store_const", const="0", dest=destination, help=argparse.SUPPRESS
            )
        else:
            metavar = {int: "N", float: "X", str: "TEXT"}[setting.kind]
            group.add_argument(
                f"--{setting.flag}", type=setting.kind, dest=destination, metavar=metavar, help=setting.help
            )


def _as_variable(setting: Setting, value: Any) -> str:
    """A setting's value as the runtime reads it.

    Raises:
        UsageError: it is out of range.
    """
    if setting.kind is _SWITCH:
        if not isinstance(value, bool) and value not in ("0", "1"):
            raise UsageError(f"{setting.flag}={value} must be true or false")
        return str(int(value))
    if setting.kind in {int, float}:
        return str(_number(setting, value) * setting.scale)
    if not isinstance(value, str):
        raise UsageError(f"{setting.flag}={value} is not a text: put it in quotes")
    if setting.flag == "log-level" and str(value).upper() not in _LOG_LEVELS:
        raise UsageError(f"log-level={value} is not one of {', '.join(_LOG_LEVELS)}")
    return str(value)


def _number(setting: Setting, value: Any) -> float:
    try:
        number: float = setting.kind(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or (isinstance(value, float) and number != value):
        raise UsageError(f"{setting.flag}={value} is not {'a whole' if setting.kind is int else 'a'} number")
    if number < 0:
        raise UsageError(f"{setting.flag}={value} must be >= 0")
    if number > setting.highest:
        raise UsageError(f"{setting.flag}={value} must be <= {setting.highest}")
    return number


def settings_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Environment variables that the flags ask for."""
    variables = {}
    for setting in SETTINGS:
        value = getattr(arguments, setting.variable)
        if value is not None:
            variables[setting.variable] = _as_variable(setting, value)
    if arguments.hide_time is not None:
        variables["HOROVOD_LOG_HIDE_TIME"] = arguments.hide_time
    if arguments.stall_check_disable is not None:
        variables["HOROVOD_STALL_CHECK_DISABLE"] = arguments.stall_check_disable
    if arguments.network_interfaces:
        names = ",".join(arguments.network_interfaces)
        variables["HOROVOD_GLOO_IFACE"] = names.partition(",")[0]
        variables["NCCL_SOCKET_IFNAME"] = names
    return variables


def read_config_file(path: str, *, any_controller: bool = False) -> tuple[dict[str, str], list[str]]:
    """Environment variables that a configuration file asks for, and the keys in it that mean nothing.

    Args:
        any_controller: a flag has chosen the controller, so the file's does not count.

    Raises:
        UsageError: it cannot be read, a value makes no sense, or there is no such controller.
    """
    try:
        import yaml  # noqa: PLC0415  needed for this flag only
    except ImportError:
        raise UsageError("--config-file needs PyYAML: pip install pyyaml") from None
    try:
        content: object = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    if content is not None and not isinstance(content, Mapping):
        raise UsageError(f"{path} holds no settings: it should have sections such as `params:` and `timeline:`")
    flat = {
        f"{section}.{key}": value
        for section, entries in (content or {}).items()
        for key, value in (entries.items() if isinstance(entries, Mapping) else [("", entries)])
    }
    variables = {}
    for setting in SETTINGS:
        if setting.key in flat:
            variables[setting.variable] = _as_variable(setting, flat.pop(setting.key))
    for setting in _INVERTED:
        if setting.key in flat:
            variables[setting.variable] = "0" if _as_variable(setting, flat.pop(setting.key)) == "1" else "1"
    controller = flat.pop("controller.", None)
    if controller is not None and not any_controller:
        if controller not in {"gloo", "mpi"}:
            raise UsageError(f"{path}: controller {controller}: choose gloo or mpi there, or add --gloo or --mpi")
        variables["HOROVOD_CONTROLLER"] = controller
    return variables, sorted(key.rstrip(".") for key in flat)
