"""tl-tune with real ranks: settings reach the script, trials measure and stop, and an interrupted tuning says what it knows."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlkit.collector.tuning.jobs import Command, JobResult, Jobs
from tlkit.collector.tuning.losses import compare
from tlkit.collector.tuning.settings import Candidate
from tlkit.timeline.trials import Block

from .ranks import REPOSITORY

SAMPLE = ("python", "samples/untuned.py", "--channels", "4", "--batch-size", "4")
LIMIT_S = 250.0

#: A job starts several interpreters, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(600)


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "TLKIT_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}"
    return inherited | {"PYTHONPATH": str(REPOSITORY), "PATH": path, "OMP_NUM_THREADS": "1"}


def run(folder: Path, words: tuple[str, ...], *candidates: Candidate, steps: int = 20, **how: object) -> JobResult:
    """One job of two ranks."""
    np = how.pop("np", 2)
    assert np is None or isinstance(np, int)
    jobs = Jobs(Command(words=words, np=np), folder, 0, environment())
    return jobs.run(candidates, steps=steps, limit_s=LIMIT_S, **how)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


def test_settings_reach_a_script_that_knows_nothing_of_them(tmp_path: Path) -> None:
    """And change nothing of what it computes; both jobs are stopped after twenty steps, cleanly."""
    changed = Candidate(
        name="several",
        value="",
        settings={
            "loader.workers": "1", "loader.prefetch": "3", "loader.persistent": "1", "optimizer.fused": "1",
        },
        environment={"HOROVOD_FUSION_THRESHOLD": "1000"},
        script="",
    )  # fmt: skip
    before, after = run(tmp_path / "a", SAMPLE), run(tmp_path / "b", SAMPLE, changed)

    for result in (before, after):
        assert not result.failed, result.why
        assert [len(trial.ends_ns) for trial in result.trials] == [20, 20]
        assert not any(trial.ended_itself for trial in result.trials)
        assert None not in result.losses
    assert compare([before.losses], after.losses).verdict in {"same", "rounding"}
    seen, plain = after.trials[1].seen, before.trials[1].seen
    (loader,) = seen.loaders
    assert (loader.workers, loader.prefetch, loader.persistent, loader.epochs) == (1, 3, True, 1)
    assert (seen.fused, seen.fusion_threshold_nbytes) == (True, 1000)
    assert (plain.fused, plain.fusion_threshold_nbytes, plain.loaders[0].workers) == (False, 128 << 20, 0)
    assert (plain.runtime, plain.transport, plain.local_size, plain.optimizer) == ("hvd", "shm", 2, "SGD")


SETTINGS_OF_STEPS = """
import horovod.torch as hvd, torch
from tlkit.runtime.core import engine
hvd.init()
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
torch.set_num_threads(1)
seen = []
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    node = engine.current().control.node
    desk = node.desk
    seen.append([torch.get_num_threads(), node._cycle_time_ns, desk and desk.coordinator.fusion_threshold_nbytes])
if hvd.rank() == 0:
    print(seen)
"""


def test_settings_change_between_blocks_while_the_job_runs(tmp_path: Path) -> None:
    """Threads and cycle time at once, the fusion threshold with the next batch; then all is as it was."""
    script = tmp_path / "script.py"
    script.write_text(SETTINGS_OF_STEPS)
    other = {"torch.threads": "2", "HOROVOD_CYCLE_TIME": "3", "HOROVOD_FUSION_THRESHOLD": "4096"}
    blocks = [Block(5), Block(10, other), Block(5)]
    result = run(tmp_path / "job", ("python", str(script)), steps=100, blocks=blocks)
    output = (tmp_path / "job" / "job1" / "output.txt").read_text()
    seen = json.loads(output.partition(">:")[2] if ">:" in output else output)

    assert not result.failed, result.why
    assert all(trial.ended_itself for trial in result.trials)
    usual = [1, 1_000_000, 128 << 20]
    assert seen[3] == usual
    assert seen[6] == seen[13] == [2, 3_000_000, 4096]
    assert seen[17] == seen[29] == usual
    assert {trial.seen.threads for trial in result.trials} == {1}


def test_threads_that_are_set_from_outside_stay(tmp_path: Path) -> None:
    """Whatever the script says."""
    script = tmp_path / "script.py"
    script.write_text(SETTINGS_OF_STEPS)
    threads = Candidate(name="threads", value="3", settings={"torch.threads": "3"}, script="")
    result = run(tmp_path / "job", ("python", str(script)), threads, np=None)

    assert not result.failed, result.why
    assert [trial.seen.threads for trial in result.trials] == [3]


DDP = """
import torch, torch.distributed as dist, tlkit
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
tlkit.instrument()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    optimizer.zero_grad()
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
"""


def test_ddp_is_tuned_as_well_and_a_script_without_end_is_stopped(tmp_path: Path) -> None:
    """Its buckets and its optimizer."""
    script = tmp_path / "script.py"
    script.write_text(DDP)
    changed = Candidate(
        name="several",
        value="",
        settings={"ddp.gradient_as_bucket_view": "1", "ddp.bucket_cap_mb": "5", "optimizer.fused": "1"},
        script="",
    )
    plain = run(tmp_path / "a", ("python", str(script))).trials
    tuned = run(tmp_path / "b", ("python", str(script)), changed).trials

    assert [len(trial.ends_ns) for trial in (*plain, *tuned)] == [20] * 4
    before, after = plain[0].seen, tuned[0].seen
    assert (before.runtime, before.ddp, before.bucket_view, before.bucket_cap_mb) == ("torch", True, False, 25.0)
    assert (after.ddp, after.bucket_view, after.bucket_cap_mb) == (True, True, 5.0)
    assert (before.fused, after.fused, after.optimizer) == (False, True, "AdamW")


def test_a_short_tuning_ends_in_a_table_and_json(tmp_path: Path) -> None:
    """With the time of one round it can promise nothing, and says so; nothing is printed beside the report."""
    report = tmp_path / "tuning.json"
    line = [
        sys.executable, "-m", "tlkit.collector.tuning.cli", "-np", "2", "--steps", "20", "--minutes", "0.02",
        "--only", "workers", "--json", str(report), "--folder", str(tmp_path / "kept"), *SAMPLE, "--read-ms", "150",
    ]  # fmt: skip
    ended = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=550, check=False)

    assert ended.returncode == 0, ended.stderr
    assert "pairs are too few to decide" in ended.stdout, ended.stdout
    assert "workers" in ended.stdout
    assert ended.stderr == ""
    written = json.loads(report.read_text())
    assert written["tried"][0]["cause"] == "slow-loader"
    assert written["tried"][0]["how"] == "jobs"
    assert written["tried"][0]["losses"]["verdict"] in {"same", "rounding"}
    assert written["use"]["command"] == f"tl-run -np 2 {' '.join([*SAMPLE, '--read-ms', '150'])}"
    assert (tmp_path / "kept" / "diagnosis.rank1.json").is_file()


def test_an_interrupt_ends_the_ranks_and_leaves_the_report(tmp_path: Path) -> None:
    """Ctrl-C while ranks train."""
    line = [
        sys.executable, "-m", "tlkit.collector.tuning.cli", "-np", "2", "--steps", "100000", "--folder",
        str(tmp_path / "kept"), "--json", "-", *SAMPLE, "--steps", "100000",
    ]  # fmt: skip
    process = subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    timeline = tmp_path / "kept" / "diagnosis.rank1.json"
    end_s = time.monotonic() + LIMIT_S
    while not timeline.exists() and time.monotonic() < end_s:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=60)

    assert process.returncode == 130, said
    assert json.loads(printed)["interrupted"] is True
    assert said == ""
    assert trainers(str(tmp_path)) == []


def trainers(folder: str) -> list[int]:
    """Processes that a tuning in this folder has left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOROVOD_TIMELINE={folder}" in path.read_text(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
