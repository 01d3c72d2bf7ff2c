"""Timelines of ranks that die, that start late, and that read data in other ways."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace
from tlkit.timeline.commands.conformance import check_trace_events

from .ranks import finish_ranks, run_ranks, start_ranks

_LOOP = """
from tlkit.timeline.record import recorder
hvd.init()
net = torch.nn.Linear(50, 50)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())

def step():
    optimizer.zero_grad()
    net(torch.randn(4, 50)).sum().backward()
    optimizer.step()
"""


def test_a_killed_rank_leaves_all_but_the_last_half_second(tmp_path: Path) -> None:
    """kill -9 in the middle of training: both files read, and the steps are there up to the last flush."""
    timeline = tmp_path / "t.json"
    processes = start_ranks(
        2,
        _LOOP
        + """
for i in range(1_000_000):
    step()
    if i % 10 == 0:
        print(recorder.now_ns(), flush=True)
""",
        {"HOROVOD_TIMELINE": str(timeline)},
    )
    victim = processes[1]
    assert victim.stdout is not None
    begun_ns = int(victim.stdout.readline())
    last_ns = begun_ns
    while last_ns < begun_ns + 2_000_000_000:
        last_ns = int(victim.stdout.readline())
    os.kill(victim.pid, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    finish_ranks(processes)
    trace = open_trace(timeline)
    trace.check()
    with (tmp_path / "t.rank1.json").open() as shard:
        shard.readline()
        origin_ns = json.loads(shard.readline().rstrip(",\n"))["args"]["clock"]["origin_ns"]
    lines = (tmp_path / "t.rank1.json").read_text().splitlines()
    last_step_us = max(
        event["ts"] + event["dur"]
        for event in (json.loads(line.rstrip(",")) for line in lines[1:-1])
        if event["name"] == "STEP"
    )

    assert trace.meta.ranks == (0, 1)
    assert trace.meta.dropped.get("unclosed_array") == 1
    assert origin_ns + last_step_us * 1000 >= killed_ns - 700_000_000
    assert len(trace.steps) > 50


def test_a_hang_is_visible_in_the_file_of_a_killed_job(tmp_path: Path) -> None:
    """A tensor that only one rank asks for: the file of that rank shows what it waited for."""
    timeline = tmp_path / "t.json"
    processes = start_ranks(
        2,
        """
        hvd.init()
        hvd.allreduce(torch.ones(1), name="fine")
        print("READY", flush=True)
        if hvd.rank() == 0:
            hvd.allreduce(torch.ones(1), name="lonely")
        time.sleep(60)
        """,
        {"HOROVOD_TIMELINE": str(timeline)},
    )
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    deadline = time.monotonic() + 20
    while '"allreduce.lonely"' not in timeline.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes:
        process.kill()
    finish_ranks(processes)
    trace = open_trace(timeline)
    spans = trace.spans[trace.spans["rank"] == 0]

    assert "NEGOTIATE_ALLREDUCE" in spans.loc[spans["lane"] == "allreduce.lonely", "name"].tolist()
    assert "SYNCHRONIZE" in spans["name"].tolist()
    assert trace.meta.dropped["unclosed_begin"] >= 2


def test_a_timeline_can_be_started_and_stopped_while_training(tmp_path: Path) -> None:
    """DYNAMIC writes nothing by itself; each start makes a file of its own with the steps in between."""
    run_ranks(
        2,
        _LOOP
        + f"""
import threading
folder = {str(tmp_path)!r}
for i in range(4): step()
hvd.stop_timeline()
hvd.start_timeline(folder + "/first.json", mark_cycles=True)
for i in range(6): step()
hvd.start_timeline(folder + "/first.json")
hvd.start_timeline(folder + "/second.json")
for i in range(3): step()
hvd.stop_timeline()
hvd.stop_timeline()
for i in range(3): step()
try:
    hvd.start_timeline(folder + "/missing/t.json")
except ValueError as error:
    assert "/missing/t" in str(error), error
else:
    raise SystemExit("a file that cannot be made was accepted")
""",
        {"HOROVOD_TIMELINE": "DYNAMIC"},
    )
    names = sorted(path.name for path in tmp_path.iterdir())
    first, second = open_trace(tmp_path / "first.json"), open_trace(tmp_path / "second.json")

    assert names == ["first.json", "first.rank1.json", "second.json", "second.rank1.json"]
    for path in tmp_path.iterdir():
        assert check_trace_events(path) == []
    assert len(first.steps) >= 2 * 5
    assert 2 * 2 <= len(second.steps) <= 2 * 3
    assert "CYCLE_START" in (tmp_path / "first.json").read_text()


def test_a_timeline_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    """One line on stderr; the job goes on."""
    results = run_ranks(1, _LOOP + "step()\nanswer(True)\n", {"HOROVOD_TIMELINE": str(tmp_path / "missing" / "t.json")})

    assert results[0].answer is True
    assert "will not write a timeline" in results[0].stderr
    assert "Traceback" not in results[0].stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_tell_what_they_do_whatever_starts_them(method: str, tmp_path: Path) -> None:
    """Each batch has its fetch with dataset and collate, on the lane of its worker; the user's own worker_init_fn runs."""
    script = tmp_path / "loader.py"
    script.write_text(
        """
import sys, os, torch
import tlkit.runtime.torch as hvd

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return torch.tensor(i * i)

def started(worker):
    open(os.environ["MARKS"] + f"/worker{worker}", "w").close()

if __name__ == "__main__":
    hvd.init()
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1], worker_init_fn=started
    )
    assert torch.cat(list(loader)).tolist() == [i * i for i in range(40)]
    assert loader.worker_init_fn is started
    assert torch.cat(list(loader)).tolist() == [i * i for i in range(40)]
"""
    )
    marks = tmp_path / "marks"
    marks.mkdir()
    run_ranks(
        1,
        f"""
        import subprocess
        done = subprocess.run([sys.executable, {str(script)!r}, {method!r}])
        assert done.returncode == 0
        """,
        {"HOROVOD_TIMELINE": str(tmp_path / "t.json"), "MARKS": str(marks)},
    )
    trace = open_trace(tmp_path / "t.json")
    fetched = trace.spans[trace.spans["lane_kind"] == "data worker"]

    assert sorted(path.name for path in marks.iterdir()) == ["worker0", "worker1"]
    assert fetched.groupby("name", observed=True).size().to_dict() == {"COLLATE": 20, "DATASET": 20, "DATA_FETCH": 20}
    assert sorted(fetched["lane"].unique()) == ["data worker 0", "data worker 1"]
    assert check_trace_events(tmp_path / "t.json") == []


def test_iterable_datasets_and_loading_in_the_main_process_are_recorded(tmp_path: Path) -> None:
    """num_workers=0 nests the making of a batch in the wait for it; the end of the data is no wait."""
    run_ranks(
        1,
        """
        hvd.init()
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(range(10))
        assert [batch.tolist() for batch in torch.utils.data.DataLoader(Stream(), batch_size=4)] == [
            [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]
        ]
        class Broken(torch.utils.data.Dataset):
            def __len__(self): return 1
            def __getitem__(self, i): raise KeyError("broken")
        try:
            list(torch.utils.data.DataLoader(Broken()))
        except KeyError:
            pass
        """,
        {"HOROVOD_TIMELINE": str(tmp_path / "t.json")},
    )
    spans = open_trace(tmp_path / "t.json").spans
    # Whether the collector has enough to do to be noticed is chance.
    counted = spans[spans["name"] != "GARBAGE_COLLECTION"].groupby("name", observed=True).size().to_dict()

    assert counted == {"COLLATE": 3, "DATASET": 4, "DATA_FETCH": 4, "DATA_WAIT": 4}
    assert check_trace_events(tmp_path / "t.json") == []


def test_debugging_aids_that_were_left_on_are_named(tmp_path: Path) -> None:
    """Rank 1 alone looks for anomalies, in backward alone; it is why it is slow, whatever that costs."""
    run_ranks(
        2,
        """
        import contextlib
        hvd.init()
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
        # With so small a rate nothing diverges, which rank 1 would take for an error.
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6), model.named_parameters())
        for _ in range(20):
            loss = model(torch.ones(2, 8)).mean()
            with torch.autograd.set_detect_anomaly(True) if hvd.rank() else contextlib.nullcontext():
                loss.backward()
            if hvd.rank():
                time.sleep(0.01)
            optimizer.step()
        """,
        {"HOROVOD_TIMELINE": str(tmp_path / "t.json")},
    )
    trace = open_trace(tmp_path / "t.json")
    assert trace.meta.settings == {1: {"autograd-anomaly": 0.0}}
    (found,) = (finding for finding in analyze(trace).findings if finding.cause == "costly-settings")
    assert found.sentence.startswith("Rank 1 has autograd's anomaly detection on")


def test_horovods_own_file_is_written_when_asked_and_valid_at_any_moment(tmp_path: Path) -> None:
    """Rank 0 alone writes; every begin has its end, every negotiation a tick of each rank; a copy made meanwhile parses."""
    timeline = tmp_path / "t.json"
    processes = start_ranks(
        2,
        _LOOP
        + """
import shutil
import time
for i in range(30):
    step()
    time.sleep(0.03)
    if hvd.rank() == 0:
        shutil.copy(os.environ["HOROVOD_TIMELINE"], f"{os.environ['HOROVOD_TIMELINE']}.{i}")
hvd.allreduce(torch.ones(3, 2), name='with "quotes"')
hvd.barrier()
""",
        {"HOROVOD_TIMELINE": str(timeline), "HOROVOD_TIMELINE_FORMAT": "horovod"},
    )
    assert all(result.returncode == 0 for result in finish_ranks(processes))
    copies = [json.loads(copy.read_text()) for copy in tmp_path.glob("t.json.*")]
    events = json.loads(timeline.read_text())

    assert len(copies) == 30
    assert len(copies[-1]) < len(events)
    assert not (tmp_path / "t.rank1.json").exists()
    names = {event["pid"]: event["args"].get("name", "") for event in events if event.get("name") == "process_name"}
    assert 'allreduce.with "quotes"' in names.values()
    stacks: dict[int, list[dict[str, object]]] = {pid: [] for pid in names}
    ticks: dict[str, set[str]] = {}
    for event in events:
        if event["ph"] == "B":
            stacks[event["pid"]].append(event)
        elif event["ph"] == "X":
            assert str(stacks[event["pid"]][-1]["name"]).startswith("NEGOTIATE_")
            ticks.setdefault(names[event["pid"]], set()).add(event["name"])
        elif event["ph"] == "E":
            begun = stacks[event["pid"]].pop()
            assert begun["ts"] <= event["ts"]
            if begun["name"] == "ALLREDUCE" and "quotes" in names[event["pid"]]:
                assert event["args"] == {"dtype": "float32", "shape": "[3, 2]"}
    assert not any(stacks.values())
    assert ticks["allreduce.weight"] == {"0", "1"}
    trace = open_trace(timeline)
    assert trace.meta.format == "horovod"
    assert trace.meta.size == 2
    assert not trace.meta.dropped
    assert (trace.collectives["kind"] == "allreduce").sum() >= 31
