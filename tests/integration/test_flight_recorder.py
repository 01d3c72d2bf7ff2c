"""The flight recorder on real ranks: what sets recordings aside, on all ranks together, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.attack.harness import collecting, start_push, wait_for
from tlkit.timeline import open_trace
from tlkit.timeline.record.flight import RECORDING, WHY

from .ranks import TL_RUN, environment_of, finish_ranks, fork_ranks, run_ranks, start_ranks

TRAIN = """
hvd.init()
model = torch.nn.Linear(200, 50)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 200)).sum().backward()
        optimizer.step()
"""


def folders(base: Path) -> list[str]:
    """What was set aside, and the recording if it is still there."""
    return sorted(child.name for child in base.iterdir())


def started(processes: list["subprocess.Popen[str]"], base: Path) -> None:
    """Wait until all ranks record."""
    for _ in range(600):
        if len(list(base.glob(f"{RECORDING}/t*.json"))) == len(processes):
            return
        try:
            processes[0].wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError([process.communicate() for process in processes])


def test_a_call_on_one_rank_sets_aside_the_recordings_of_all(tmp_path: Path) -> None:
    """The others are at the same steps; a run that ends well leaves nothing else."""
    script = (
        TRAIN
        + """
train(20)
if hvd.rank() == 1:
    answer(hvd.dump_timeline("loss is nan"))
train(200)
hvd.shutdown()
if hvd.rank() == 0:
    answer(0)
"""
    )
    results = fork_ranks(2, script, {"HOROVOD_FLIGHT_RECORDER": str(tmp_path)})

    assert results[1].answer is True
    assert folders(tmp_path) == ["001-call"]
    trace = open_trace(tmp_path / "001-call")
    assert trace.meta.ranks == (0, 1)
    assert "set aside by the flight recorder: loss is nan" in trace.meta.notes
    last = trace.steps.groupby("rank")["step"].max()
    assert last.min() >= 15
    assert f"tl-analyze {tmp_path / '001-call'}" in results[0].stderr


def test_a_signal_to_one_rank_sets_aside_the_recordings_of_all(tmp_path: Path) -> None:
    """SIGUSR2; and training goes on."""
    script = (
        TRAIN
        + """
while not os.path.exists(os.environ["ENOUGH"]):
    train(20)
    hvd.barrier()
    if hvd.rank() == 0 and len(os.listdir(os.environ["HOROVOD_FLIGHT_RECORDER"])) > 1:
        open(os.environ["ENOUGH"], "w").close()
    hvd.barrier()
answer(0)
"""
    )
    base = tmp_path / "flight"
    base.mkdir()
    environment = {"HOROVOD_FLIGHT_RECORDER": str(base), "ENOUGH": str(tmp_path / "enough")}
    processes = start_ranks(2, script, environment)
    started(processes, base)
    os.kill(processes[1].pid, signal.SIGUSR2)
    for result in finish_ranks(processes):
        assert result.answer == 0

    assert folders(base) == ["001-signal"]
    assert open_trace(base / "001-signal").meta.ranks == (0, 1)


def test_a_stall_warning_sets_aside_what_led_to_it(tmp_path: Path) -> None:
    """Rank 1 stops asking; the tensor that rank 0 waits for is in the recording, and the name of the rank in the reason."""
    script = (
        TRAIN
        + """
train(5)
if hvd.rank() == 0:
    hvd.allreduce(torch.ones(1), name="alone")
else:
    time.sleep(4)
    hvd.allreduce(torch.ones(1), name="alone")
answer(0)
"""
    )
    environment = {"HOROVOD_FLIGHT_RECORDER": str(tmp_path), "HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    for result in fork_ranks(2, script, environment):
        assert result.answer == 0

    assert folders(tmp_path)[0] == "001-stall"
    told = json.loads((tmp_path / "001-stall" / WHY).read_text())
    assert "rank 1 did not submit" in told["why"]
    assert "alone" in told["why"]
    trace = open_trace(tmp_path / "001-stall")
    assert [tensor.name for tensor in trace.meta.ends[0].open_tensors] == ["allreduce.alone"]


def test_the_recording_of_a_killed_job_stays(tmp_path: Path) -> None:
    """kill -9 of one rank: all recordings are there, with the reason."""
    script = (
        TRAIN
        + """
train(30)
hvd.barrier()
if hvd.rank() == 1:
    time.sleep(0.6)
    os.kill(os.getpid(), 9)
train(100000)
"""
    )
    results = fork_ranks(2, script, {"HOROVOD_FLIGHT_RECORDER": str(tmp_path)})

    assert [result.returncode for result in results] == [1, -9]
    assert folders(tmp_path) == [RECORDING]
    trace = open_trace(tmp_path / RECORDING)
    assert trace.meta.ranks == (0, 1)
    assert trace.steps.groupby("rank")["step"].max().min() >= 25
    assert any("the job ended:" in note and "rank 1" in note for note in trace.meta.notes)


def test_beside_a_timeline_there_is_no_flight_recorder(tmp_path: Path) -> None:
    """The timeline has it all."""
    environment = {"HOROVOD_FLIGHT_RECORDER": str(tmp_path / "flight"), "HOROVOD_TIMELINE": str(tmp_path / "t.json")}
    script = TRAIN + "train(3)\nanswer(hvd.dump_timeline())"
    for result in fork_ranks(2, script, environment):
        assert result.answer is False

    assert folders(tmp_path) == ["t.json", "t.rank1.json"]


def test_a_signal_to_the_launcher_is_one_rank_s(tmp_path: Path) -> None:
    """SIGUSR2 sent to `tl-run` does not end it: all recordings are set aside, once, behind a shell, too."""
    base = tmp_path / "flight"
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, torch\nimport tlkit.runtime.torch as hvd\n"
        + TRAIN
        + f"""
base = {str(base)!r}
hvd.barrier()
if hvd.rank() == 0:
    print("TRAINING", flush=True)
while not os.path.exists(base + "/enough"):
    train(5)
    hvd.barrier()
    if hvd.rank() == 0 and any(name.startswith("001") for name in os.listdir(base)):
        open(base + "/enough", "w").close()
    hvd.barrier()
train(5)
"""
    )
    process = subprocess.Popen(
        [*TL_RUN, "-np", "2", "sh", "-c", f"{sys.executable} {script}; exit $?"],
        env=environment_of(0, 1, 0) | {"HOROVOD_FLIGHT_RECORDER": str(base)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGUSR2)
    _, stderr = process.communicate(timeout=90)

    assert "TRAINING" in line
    assert process.returncode == 0, stderr
    assert folders(base) == ["001-signal", "enough"]
    assert open_trace(base / "001-signal").meta.ranks == (0, 1)


def test_a_signal_to_the_launcher_of_ranks_that_do_not_record_ends_nothing() -> None:
    """It is said that nobody waits for it."""
    process = subprocess.Popen(
        [*TL_RUN, "-np", "1", "sh", "-c", "echo ready; sleep 1"],
        env=environment_of(0, 1, 0),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGUSR2)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "SIGUSR2: no rank on this host has a flight recorder" in stderr


DDP = """
import signal, threading
import torch.distributed as dist
import tlkit

rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size)
recording = tlkit.instrument()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
base = os.environ["HOROVOD_FLIGHT_RECORDER"]

def step():
    optimizer.zero_grad()
    model(torch.randn(8, 20)).sum().backward()
    optimizer.step()

def train_until(name):
    # All ranks take the same steps: rank 0 decides, and tells by a collective.
    going_on = torch.ones(1)
    while going_on.item():
        step()
        if rank == 0:
            ready = all(os.path.exists(f"{base}/{name}/t{f'.rank{r}' * bool(r)}.json") for r in range(size))
            going_on.fill_(not ready)
        dist.broadcast(going_on, 0)
"""


def test_ranks_of_ddp_set_aside_together(tmp_path: Path) -> None:
    """Under tlkit.instrument(): by a call on one rank and by a signal to another; a run that ends well leaves nothing else."""
    script = (
        DDP
        + """
step()
if rank == 1:
    assert recording.set_aside("loss is nan")
train_until("001-call")
if rank == 0:
    os.kill(os.getpid(), signal.SIGUSR2)
train_until("002-signal")
answer(recording.path is not None)
dist.destroy_process_group()
"""
    )
    results = run_ranks(2, script, {"HOROVOD_FLIGHT_RECORDER": str(tmp_path)}, 300)

    assert [result.answer for result in results] == [True, True]
    assert folders(tmp_path) == ["001-call", "002-signal"]
    trace = open_trace(tmp_path / "001-call")
    assert trace.meta.ranks == (0, 1)
    assert "set aside by the flight recorder: loss is nan" in trace.meta.notes
    assert len(trace.collectives)


def test_a_hang_of_ddp_sets_aside_what_led_to_it(tmp_path: Path) -> None:
    """Rank 1 does not come back to the loop; the ranks say that no step ends, and an exception keeps the recording."""
    script = (
        DDP
        + """
for _ in range(5):
    step()
while not any(name.startswith("001-stall") for name in os.listdir(base)):
    time.sleep(0.05)
dist.barrier()
answer(rank)
raise RuntimeError("on purpose")
"""
    )
    environment = {"HOROVOD_FLIGHT_RECORDER": str(tmp_path), "HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    for rank, result in enumerate(fork_ranks(2, script, environment, 300)):
        assert result.answer == rank
        assert result.returncode == 1

    assert RECORDING in folders(tmp_path)
    assert "has not ended a step for" in json.loads((tmp_path / "001-stall" / WHY).read_text())["why"]
    assert "RuntimeError: on purpose" in json.loads((tmp_path / RECORDING / WHY).read_text())["why"]


def test_a_collector_asks_the_ranks_for_what_they_have(tmp_path: Path) -> None:
    """Through the process that sends their recording; also while the training hangs, and once for one request."""
    script = (
        TRAIN
        + """
train(30)
while not os.path.exists(os.environ["ENOUGH"]):
    time.sleep(0.05)
hvd.shutdown()
answer(0)
"""
    )
    base, enough = tmp_path / "flight", tmp_path / "enough"
    base.mkdir()
    processes = start_ranks(2, script, {"HOROVOD_FLIGHT_RECORDER": str(base), "ENOUGH": str(enough)})
    started(processes, base)
    with collecting(tmp_path / "kept") as server:
        push = start_push(base / RECORDING, server.url, tmp_path / "push.log", "--run", "job")
        try:
            wait_for(
                lambda: server.ask("/v1/runs/job")[1].get("dump", {}).get("possible"), "the sender is not heard of"
            )
            assert server.ask("/v1/runs/job/dump", "POST", headers={"Authorization": "Bearer wrong"})[0] == 401
            status, asked = server.ask("/v1/runs/job/dump?why=loss+is+nan", "POST")
            assert status == 202
            wait_for((base / "001-request" / WHY).exists, (tmp_path / "push.log").read_text())
            assert server.ask("/v1/runs/job")[1]["dump"]["passed_on"] == asked["request"]
        finally:
            push.terminate()
            push.wait(60)
            enough.touch()
            results = finish_ranks(processes)
    assert [result.answer for result in results] == [0, 0]
    assert folders(base) == ["001-request"]
    told = json.loads((base / "001-request" / WHY).read_text())
    assert told["why"] == f"loss is nan (request {asked['request']})"
    trace = open_trace(base / "001-request")
    assert trace.meta.ranks == (0, 1)
    assert trace.steps.groupby("rank")["step"].max().tolist() == [29, 29]
