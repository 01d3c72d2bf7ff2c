"""Many shards on a real Dask cluster of two workers, on processes here, and at once: the same sums."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.commands.trace import main

distributed = pytest.importorskip("distributed")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

SHARDS = 64


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 ranks of a made-up job."""
    import kineto_like

    folder = tmp_path_factory.mktemp("many")
    for rank in range(SHARDS):
        kineto_like.write(folder / f"rank{rank}.json", 2_000, rank=rank, world_size=SHARDS, seed=rank)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two worker processes of a Dask cluster."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as running:
        yield running.scheduler_address


def info(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `tl-trace info --json` says."""
    assert main(["info", "--json", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_what_processes_here_and_one_reader_give(
    many: Path, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts, sums, and every rank's device."""
    on_cluster = info(capsys, str(many), "--scheduler", cluster)
    here = info(capsys, str(many), "--workers", "2")
    at_once = info(capsys, str(many))
    assert on_cluster == here
    assert on_cluster["ranks"] == list(range(SHARDS))
    for key in ("by_rank", "tables", "spans", "events", "size", "dropped"):
        assert on_cluster[key] == at_once[key]
    assert on_cluster["spans"] == len(open_trace(many).spans)

    def sorted_rows(summary: dict[str, Any]) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in summary["lanes"])

    assert sorted_rows(on_cluster) == sorted_rows(at_once)


@pytest.mark.filterwarnings("ignore")
def test_errors_come_back_from_workers(
    many: Path, cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and status 2, as if it had been read here."""
    (tmp_path / "rank0.json").write_bytes((many / "rank0.json").read_bytes())
    (tmp_path / "other.json").write_bytes((many / "rank0.json").read_bytes())
    for where in (["--scheduler", cluster], ["--workers", "2"]):
        assert main(["info", str(tmp_path), *where]) == 2
        assert "rank 0 is in another file as well" in capsys.readouterr().err
    (tmp_path / "other.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    for where in (["--scheduler", cluster], ["--workers", "2"]):
        assert main(["info", str(tmp_path), *where]) == 2
        assert "holds no spans" in capsys.readouterr().err


def test_a_scheduler_that_is_not_there(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Says so."""
    assert main(["info", str(many), "--scheduler", "nonsense"]) == 2
    assert "no Dask scheduler answers" in capsys.readouterr().err
