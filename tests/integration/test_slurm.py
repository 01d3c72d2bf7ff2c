"""The samples for Slurm on a real cluster of two nodes; where Slurm is not installed they are skipped."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tlkit.timeline import open_trace

from .ranks import REPOSITORY
from .slurm_cluster import NODES, SlurmCluster, SlurmUnavailable, slurm_cluster

#: Runs a job to its end; `sbatch --wait` looks every half minute.
_BATCH = """
id=$(sbatch --parsable "$@") || exit
while squeue --noheader --job "$id" | grep -q .; do sleep 0.3; done
scontrol show job "$id" | grep -q JobState=COMPLETED
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Slurm with two nodes."""
    try:
        with slurm_cluster(tmp_path_factory.mktemp("slurm")) as running:
            running.environment |= {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(REPOSITORY),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_FAMILY": "AF_INET",
            }
            yield running
    except SlurmUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("sample", "script"),
    [("slurm_tl_run", "train_cnn"), ("slurm_srun", "train_cnn"), ("slurm_torchrun", "ddp")],
)
def test_a_batch_job_records_two_nodes(cluster: SlurmCluster, sample: str, script: str, tmp_path: Path) -> None:
    """Each rank on a node of its own, in one run on one clock; the batch script ends in the diagnosis."""
    cluster.environment["HOROVOD_TIMELINE"] = str(tmp_path / "t.json")
    batch = str(REPOSITORY / "samples" / "cluster" / f"{sample}.sh")
    words = [str(REPOSITORY / "samples" / f"{script}.py"), "--steps", "8"]
    ended = cluster.run(["sh", "-c", _BATCH, "sbatch", f"--output={tmp_path}/log", batch, *words], timeout_s=170)
    said = (tmp_path / "log").read_text()

    assert ended.returncode == 0, said + ended.stderr
    trace = open_trace(tmp_path / "t.json")
    assert [trace.meta.hosts[rank] for rank in (0, 1)] == list(NODES)
    steps = trace.spans[trace.spans["name"] == "STEP"]
    assert set(steps["rank"]) == {0, 1}
    assert "Ranks (mean of a step)" in said
