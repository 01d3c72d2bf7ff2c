"""What Slurm says of the hosts of a job: names, tasks on each, and where the ranks that srun has started can meet."""

import re
from collections.abc import Mapping
from typing import Final

#: Ports at which rank 0 waits, by the numbers of job and step: all ranks know both, and two jobs on a host differ.
_FIRST_PORT: Final = 15_000
_PORTS: Final = 15_000
_STEPS_APART: Final = 97

_PART: Final = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_BRACKET: Final = re.compile(r"\[([^\]]*)\]")
_COUNT: Final = re.compile(r"^(\d+)(?:\(x(\d+)\))?$")


def expand_hosts(text: str) -> list[str]:
    """The names in a list of hosts as Slurm writes it; what is in an unknown form is left out.

    >>> expand_hosts("gpu[001-003,7],login")
    ['gpu001', 'gpu002', 'gpu003', 'gpu7', 'login']
    """
    return [name for part in _PART.findall(text) for name in _expand(part.strip()) if name]


def _expand(part: str) -> list[str]:
    found = _BRACKET.search(part)
    if found is None:
        return [part]
    names = []
    for numbers in found.group(1).split(","):
        first, dash, last = numbers.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            continue
        for number in range(int(first), int(last or first) + 1):
            names += _expand(f"{part[: found.start()]}{number:0{len(first)}}{part[found.end() :]}")
    return names


def expand_counts(text: str) -> list[int]:
    """Tasks on each host, in the order of the hosts.

    >>> expand_counts("4(x2),1")
    [4, 4, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.match(part.strip())
        if found is not None:
            counts += [int(found.group(1))] * int(found.group(2) or 1)
    return counts


def meeting_point(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port where the ranks of a step of srun meet; None if Slurm's variables do not say so.

    Slurm gives the first task to the first host, except with `--distribution=arbitrary`.
    """
    hosts = expand_hosts(environment.get("SLURM_STEP_NODELIST", ""))
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if not hosts or not job.isdigit() or not step.isdigit():
        return None
    return hosts[0], _FIRST_PORT + (int(job) + _STEPS_APART * int(step)) % _PORTS


def allocated_hosts(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    """Hosts and slots of the allocation in whose batch script, or interactive shell, this process runs; empty elsewhere.

    A task of srun is no place from which to start others, so it counts as elsewhere.
    """
    if environment.get("SLURM_PROCID", "0") != "0" or environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return []
    hosts = expand_hosts(environment.get("SLURM_JOB_NODELIST", ""))
    counts = expand_counts(environment.get("SLURM_TASKS_PER_NODE", ""))
    return list(zip(hosts, counts, strict=True)) if len(hosts) == len(counts) else []
