"""`tl-run --nsys`: every rank runs under Nsight Systems, and leaves a report of its own."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...timeline.commands.arguments import parse_range
from ...timeline.errors import UsageError
from ...timeline.read.nsys_reports import COLLECTED, SUFFIX, import_collected
from ...timeline.record.nvtx_ranges import CAPTURE, DOMAIN_NAME

#: Where the ranks find out which steps are to be captured.
STEPS_VARIABLE: Final = "TLKIT_NSYS_STEPS"
#: Names of ranges are looked at even if nobody has registered them.
REGISTERED_ONLY: Final = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
_DEFAULTS: Final = {
    ("--trace", "-t"): "",
    ("--sample", "-s"): "none",
    ("--cpuctxsw",): "none",
    # Loader workers are forked, and never become another program.
    ("--trace-fork-before-exec",): "true",
}


def nsys_command(
    command: Sequence[str], *, output: str, rank_variable: str, extra: str, steps: str | None
) -> list[str]:
    """`command`, under nsys.

    Args:
        output: name of the reports; `.rank<r>` and nsys's own ending follow.
        rank_variable: environment variable in which a rank finds its number.
        extra: more arguments for `nsys profile`; they win over ours.
        steps: `A:B` to capture steps A to B-1 only.

    Raises:
        UsageError: there is no nsys, the folder of the reports cannot be made, or the arguments cannot be understood.
    """
    if shutil.which("nsys") is None:
        raise UsageError("--nsys: nsys is not on PATH: install Nsight Systems (on Debian nsight-systems, non-free)")
    try:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--nsys-output {output}: the folder cannot be created: {error.strerror}") from error
    try:
        given = shlex.split(extra)
    except ValueError as error:
        raise UsageError(f"--nsys-args {extra}: {error}") from error
    line = ["nsys", "profile", "--force-overwrite", "true", "--output", f"{output}.rank%q{{{rank_variable}}}"]
    for names, value in _DEFAULTS.items():
        if not any(word == name or word.startswith(f"{name}=") for word in given for name in names):
            line.append(f"{names[0]}={value or _traces()}")
    if steps is not None:
        parse_range("--nsys-steps", steps)
        line += ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE}@{DOMAIN_NAME}", "--capture-range-end=stop"]
    return [*line, *given, *command]


def _traces() -> str:
    """CUDA only where there is a driver: without one nsys says so at length."""
    return "nvtx,cuda" if Path("/dev/nvidiactl").exists() else "nvtx"


def finish(output: str, ranks: int) -> str:
    """Make reports of what nsys has collected, and say what to open."""
    made, collected = [], []
    for rank in range(ranks):
        # Where nsys does not find its importer it leaves what it has collected.
        left = Path(f"{output}.rank{rank}{COLLECTED}")
        report = import_collected(left) if left.is_file() else Path(f"{output}.rank{rank}{SUFFIX}")
        if report is None:
            collected.append(str(left))
        elif report.is_file():
            made.append(str(report))
    if collected:
        return (
            f"tl-run: collected {' '.join(collected)}; QdstrmImporter, which converts them to reports, is not installed"
        )
    if not made:
        return f"tl-run: nsys wrote no report {output}.rank*: see its output above"
    names = " ".join(made)
    return f"tl-run: open {names} in Nsight Systems (nsys-ui), or tl-analyze {names}"
