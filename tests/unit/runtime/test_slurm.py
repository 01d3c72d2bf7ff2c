"""What is read from Slurm's variables."""

import pytest

from tlkit.runtime.core.slurm import allocated_hosts, expand_counts, expand_hosts, meeting_point
from tlkit.runtime.core.topology import read_launched

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[3-4]",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("one", ["one"]),
        ("a,b", ["a", "b"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[1,3-4]-ib,login", ["n1-ib", "n3-ib", "n4-ib", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[x-y]", []),
        ("", []),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    """Slurm writes runs of numbers with their leading zeros in brackets."""
    assert expand_hosts(text) == hosts


def test_counts_of_tasks() -> None:
    """Slurm writes how often a number comes in a row."""
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]


def test_ranks_of_srun_know_where_to_meet() -> None:
    """At the first host of their step; MASTER_ADDR and MASTER_PORT win; another step of the job meets at another port."""
    launched = read_launched(STEP)
    other = meeting_point(STEP | {"SLURM_STEP_ID": "1"})

    assert (launched.rank, launched.master_address) == (1, "gpu3")
    assert launched.master_port is not None
    assert 15_000 <= launched.master_port < 30_000
    assert other is not None
    assert other[1] != launched.master_port
    named = read_launched(STEP | {"MASTER_ADDR": "head", "MASTER_PORT": "29500"})
    assert (named.master_address, named.master_port) == ("head", 29500)


def test_an_allocation_is_where_tl_run_starts_ranks() -> None:
    """In a batch script, but not in a task of srun beside others."""
    batch = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "0"}

    assert allocated_hosts(batch) == [("n1", 2), ("n2", 2)]
    assert allocated_hosts(batch | {"SLURM_STEP_NUM_TASKS": "4"}) == []
    assert allocated_hosts({}) == []
