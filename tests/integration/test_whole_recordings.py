"""A recording is whole, or it says what is missing: one after the other, two at once, too early, of nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tlkit.timeline import open_trace

from .ranks import REPOSITORY, TL_RUN, environment_of, free_port, run_ranks

_STEPS = """
import os, sys, time, torch, tlkit
import torch.distributed as dist
torch.set_num_threads(1)

def train(steps=5, rank=0):
    net = torch.nn.Linear(8, 8)
    model = torch.nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return optimizer
"""


def start(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A process without a launcher."""
    inherited = {
        name: value
        for name, value in environment_of(0, 1, 1).items()
        if not name.startswith(("HOROVOD_", "MASTER_", "NVTX_"))
    }
    return subprocess.Popen(
        [sys.executable, "-c", _STEPS + script, *arguments],
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes: subprocess.Popen[str]) -> list[tuple[str, str]]:
    """What they said; all must end well."""
    said = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return said


def test_every_recording_of_a_process_has_its_steps(tmp_path: Path) -> None:
    """Also while an optimizer that marked the steps of an earlier one is still there, as in a notebook."""
    finish(
        start(
            """
kept = []
for number in range(3):
    with tlkit.instrument(f"{sys.argv[1]}/{number}.json"):
        kept.append(train())
""",
            str(tmp_path),
        )
    )
    for number in range(3):
        assert list(open_trace(tmp_path / f"{number}.json").steps["step"]) == list(range(5))


def test_two_processes_that_name_one_file_write_two(tmp_path: Path) -> None:
    """Neither loses a step; the second says where it writes."""
    script = """
recording = tlkit.instrument(sys.argv[1])
print("begun", flush=True)
sys.stdin.readline() if os.environ["WHO"] == "first" else None
train()
print(recording.path.name)
"""
    path = tmp_path / "t.json"
    first = subprocess.Popen(
        [sys.executable, "-c", _STEPS + script, str(path)],
        env=environment_of(0, 1, 1) | {"WHO": "first"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert first.stdout is not None
    assert first.stdout.readline() == "begun\n"
    ((said, warned),) = finish(start(script, str(path), WHO="second"))
    first.communicate("\n", timeout=100)
    name = said.splitlines()[-1]

    assert name.startswith("t.run-")
    assert f"this one writes {tmp_path}/{name}" in warned
    for each in (path, tmp_path / name):
        assert len(open_trace(each).steps) == 5


def test_ranks_that_meet_later_record_together_from_there(tmp_path: Path) -> None:
    """A script that begins to record before anything says which rank it is, as frameworks that start ranks themselves have it."""
    script = """
recording = tlkit.instrument()
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"tcp://127.0.0.1:{port}")
train()
recording.stop()
print(recording.path.name, recording.rank, recording.size)
"""
    port = str(free_port())
    said = finish(*(start(script, str(rank), port, HOROVOD_TIMELINE=f"{tmp_path}/t.json") for rank in (0, 1)))

    assert [out.split()[-3:] for out, _ in said] == [["t.json", "0", "2"], ["t.rank1.json", "1", "2"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.rank1.json"]
    trace = open_trace(tmp_path / "t.json")
    assert trace.meta.ranks == (0, 1)
    assert sorted(trace.steps["step"]) == sorted([*range(5), *range(5)])
    assert not trace.collectives.empty


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_timeline_that_is_no_file_is_refused_by_all_ranks(kind: str, tmp_path: Path) -> None:
    """One line of each, and the training goes on."""
    path = tmp_path / kind
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    script = "hvd.init()\nanswer(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())\n"
    results = run_ranks(2, script, {"HOROVOD_TIMELINE": str(path)}, timeout_s=60)

    for result in results:
        assert result.answer == 2.0
        assert f"it is a {'folder' if kind == 'folder' else 'FIFO'}" in result.stderr
        assert "Traceback" not in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == [kind]


def test_half_a_character_in_a_name_is_no_end(tmp_path: Path) -> None:
    """It is written out, on all ranks alike, in the timeline too."""
    script = r"""
hvd.init()
results = [hvd.allreduce(torch.ones(1), name="half \udc80", op=hvd.Sum).item() for _ in range(2)]
results.append(hvd.allgather(torch.ones(1), name="half \udc80").sum().item())
answer(results)
"""
    results = run_ranks(2, script, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"})

    assert [result.answer for result in results] == [[2.0, 2.0, 2.0]] * 2
    assert r"allreduce.half \udc80" in set(open_trace(tmp_path / "t.json").tensors["name"].astype(str))


def test_a_profile_without_a_place_does_not_end_the_training(tmp_path: Path) -> None:
    """A missing folder, and neither a name nor a timeline: a line each."""
    script = """
P = torch.profiler
for handler in (tlkit.trace_handler(sys.argv[1] + "/none/t.json"), tlkit.trace_handler()):
    with P.profile(activities=[P.ProfilerActivity.CPU], on_trace_ready=handler):
        train()
print("trained")
"""
    ((said, warned),) = finish(start(script, str(tmp_path)))

    assert said == "trained\n"
    assert f"the profile {tmp_path}/none/t.profile.rank0.json cannot be written" in warned
    assert "has no path to write to" in warned
    assert "Traceback" not in warned


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("tlkit.instrument()\ntrain()", ""),
        ("tlkit.instrument()", "is empty: the thread that began to record has loaded no data"),
        ("tlkit.instrument()\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))", "has no training step: no optimizer of torch"),
        (
            "import threading\ntlkit.instrument()\nthread = threading.Thread(target=train)\nthread.start()\nthread.join()",
            "is empty: the thread that began to record",
        ),
    ],
)
def test_a_timeline_of_nothing_says_so_and_why(script: str, expected: str, tmp_path: Path) -> None:
    """One line when it ends, and none if there are steps."""
    ((_, warned),) = finish(start(script, HOROVOD_TIMELINE=f"{tmp_path}/t.json"))
    lines = [line for line in warned.splitlines() if "the timeline" in line]

    assert len(lines) == bool(expected)
    assert expected in "".join(lines)


@pytest.mark.parametrize("code", ["pass", "import horovod.torch as hvd; hvd.init(); hvd.shutdown()"])
def test_the_launcher_says_if_no_rank_has_recorded(code: str, tmp_path: Path) -> None:
    """A program that never calls the runtime would leave the user without a file and without a word."""
    ended = subprocess.run(
        [*TL_RUN, "-np", "1", "--timeline-filename", str(tmp_path / "t.json"),
         sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert ("no rank on this host has recorded anything" in ended.stderr) == (code == "pass")
