"""Elastic training with real processes: ranks that are killed, come and go while training goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .ranks import REPOSITORY, TL_RUN

_SCRIPT = """
import json, os, sys, time
import torch
import horovod.torch as hvd
torch.set_num_threads(1)
# BEFORE
hvd.init()
first_rank = hvd.rank()
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
sizes = []

def on_reset():
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * hvd.size()

@hvd.elastic.run
def train(state):
    while state.step < STEPS:
        sizes.append(hvd.size())
        state.optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        state.optimizer.step()
        state.step += 1
        print("STEP", json.dumps([os.getpid(), hvd.rank(), hvd.size(), state.step]), flush=True)
        time.sleep(0.05)
        # LAST
        if state.step % 5 == 0:
            state.commit()

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
state.register_reset_callbacks([on_reset])
train(state)
weights = hvd.allgather_object(model.weight.tolist())
assert all(w == weights[0] for w in weights)
print("DONE", json.dumps([hvd.rank(), hvd.size(), state.step, sorted(set(sizes))]), flush=True)
hvd.shutdown()
# AFTER
"""


class _Job:
    """A running elastic job, whose lines are read one by one."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        *flags: str,
        before: str = "",
        last: str = "",
        after: str = "",
        shell: str = "ssh",
    ) -> None:
        """Start it.

        Args:
            before: what a worker does before it comes, in one line.
            last: what a rank does at the end of each step.
            after: what a rank does after training.
            shell: what reaches other hosts.
        """
        script = folder / "train.py"
        code = _SCRIPT.replace("# BEFORE", before).replace("# LAST", last).replace("# AFTER", after)
        script.write_text(code.replace("STEPS", str(steps)))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "TLKIT_"))}
        self._stderr = folder / "stderr"
        self._log = self._stderr.open("w")
        self.process = subprocess.Popen(
            [*TL_RUN, *flags, sys.executable, str(script)],
            env=kept | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "TLKIT_REMOTE_SHELL": shell},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.done: list[list[object]] = []

    def step(self) -> list[int]:
        """The next line of a step: process, rank, size, step."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "DONE" in line:
                self.done.append(json.loads(line.partition("DONE ")[2]))
            if "STEP" in line:
                step: list[int] = json.loads(line.partition("STEP ")[2])
                return step
        raise AssertionError(f"the job has ended: {self._stderr.read_text()}")

    def wait_for_size(self, size: int) -> list[int]:
        """The first step on so many ranks."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            step = self.step()
            if step[2] == size:
                return step
        raise AssertionError(f"never {size} ranks: {self._stderr.read_text()}")

    def finish(self) -> int:
        """Read to the end; returns the exit status."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "DONE" in line:
                self.done.append(json.loads(line.partition("DONE ")[2]))
        self.process.stdout.close()
        self._log.close()
        return self.process.wait(60)


def test_training_survives_a_killed_rank(tmp_path: Path) -> None:
    """The others go back to the last commit and finish with the same weights."""
    flags = ("-np", "3", "--min-np", "2", "--max-np", "3", "--blacklist-cooldown-range", "600", "900")
    job = _Job(tmp_path, 60, *flags)
    job.wait_for_size(3)
    while True:
        process, rank, _, step = job.step()
        if step > 12 and rank == 0:  # the rank that the others have looked up to
            os.kill(process, signal.SIGKILL)
            break
    begun = time.monotonic()
    job.wait_for_size(2)

    assert time.monotonic() - begun < 20
    assert job.finish() == 0, (tmp_path / "stderr").read_text()
    assert sorted(map(str, job.done)) == ["[0, 2, 60, [2, 3]]", "[1, 2, 60, [2, 3]]"]


def test_ranks_are_added_and_removed_while_training_goes_on(tmp_path: Path) -> None:
    """As the discovery script says; who comes takes over the state, who goes leaves quietly."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    script = tmp_path / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    job = _Job(tmp_path, 150, "-np", "2", "--min-np", "1", "--max-np", "4", "--host-discovery-script", str(script))
    first = job.wait_for_size(2)
    assert first[3] == 1
    hosts.write_text("localhost:2\n127.0.0.1:1\n")
    grown = job.wait_for_size(3)
    assert grown[3] > 1
    hosts.write_text("localhost:2\n")
    shrunk = job.wait_for_size(2)
    assert shrunk[3] > grown[3]

    assert job.finish() == 0, (tmp_path / "stderr").read_text()
    assert {(done[1], done[2]) for done in job.done} == {(2, 150)}
    assert len(job.done) == 2


def test_a_rank_lost_in_the_last_step_costs_the_others_nothing(tmp_path: Path) -> None:
    """Nobody leaves before all are done: the rest go back to the last commit together, and finish together."""
    flags = ("-np", "3", "--min-np", "2", "--max-np", "3", "--blacklist-cooldown-range", "600", "900")
    job = _Job(tmp_path, 8, *flags, last="if first_rank == 2 and state.step == 8: os._exit(3)")

    assert job.finish() == 0, (tmp_path / "stderr").read_text()
    assert sorted(map(str, job.done)) == ["[0, 2, 8, [2, 3]]", "[1, 2, 8, [2, 3]]"]


def test_a_worker_that_comes_after_the_end_does_not_train(tmp_path: Path) -> None:
    """It would start from the first step, below --min-np, and overwrite what rank 0 has saved."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    script = tmp_path / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    # The newcomer is there before the others finish, and comes once they have.
    late = f"""
if os.environ["TLKIT_ELASTIC_WORKER"] == "2":
    open({str(tmp_path / "late")!r}, "w").close()
    while not os.path.exists({str(tmp_path / "done")!r}): time.sleep(0.01)
"""
    wait = f"""
        while state.step == 40 and not os.path.exists({str(tmp_path / "late")!r}): time.sleep(0.01)"""
    done = f"open({str(tmp_path / 'done')!r}, 'w').close()"
    flags = ("-np", "2", "--min-np", "2", "--max-np", "3", "--host-discovery-script", str(script))
    job = _Job(tmp_path, 40, *flags, before=late, last=wait, after=done)
    job.wait_for_size(2)
    hosts.write_text("localhost:3\n")

    assert job.finish() == 0, (tmp_path / "stderr").read_text()
    assert sorted(map(str, job.done)) == ["[0, 2, 40, [2]]", "[1, 2, 40, [2]]"]


def test_a_rank_that_fails_after_the_others_have_finished_is_not_hidden(tmp_path: Path) -> None:
    """What it was to do after training is missing."""
    gone = f"""
if first_rank == 0:
    open({str(tmp_path / "pid")!r} + "~", "w").write(str(os.getpid()))
    os.rename({str(tmp_path / "pid")!r} + "~", {str(tmp_path / "pid")!r})
else:
    while not os.path.exists({str(tmp_path / "pid")!r}): time.sleep(0.01)
    while os.path.exists("/proc/" + open({str(tmp_path / "pid")!r}).read()): time.sleep(0.01)
    os._exit(5)
"""
    job = _Job(tmp_path, 5, "-np", "2", "--min-np", "1", after=gone)

    assert job.finish() == 5, (tmp_path / "stderr").read_text()
    assert len(job.done) == 2


def test_a_host_where_a_rank_died_is_left_and_comes_back(tmp_path: Path) -> None:
    """As a whole, as long as the user has said; enough ranks are left elsewhere."""
    script = tmp_path / "discover.sh"
    script.write_text("#!/bin/sh\necho localhost:2\necho 127.0.0.1:2\n")
    script.chmod(0o755)
    flags = (
        "-np",
        "4",
        "--min-np",
        "2",
        "--host-discovery-script",
        str(script),
        "--blacklist-cooldown-range",
        "2",
        "4",
    )
    marker = tmp_path / "died"
    die = f"""
        if hvd.rank() == 3 and state.step == 7 and not os.path.exists({str(marker)!r}):
            open({str(marker)!r}, "w").close()
            os._exit(3)"""
    job = _Job(tmp_path, 200, *flags, last=die)
    job.wait_for_size(4)
    left = job.wait_for_size(2)
    back = job.wait_for_size(4)

    assert 5 <= left[3] <= 7
    assert back[3] > left[3]
    assert job.finish() == 0, (tmp_path / "stderr").read_text()
    assert {size for done in job.done for size in done[3]} == {2, 4}  # type: ignore[attr-defined]


def test_a_host_that_cannot_be_reached_does_not_end_the_job(tmp_path: Path) -> None:
    """Not one whose name nobody knows, nor one whose shell fails."""
    script = tmp_path / "discover.sh"
    script.write_text("#!/bin/sh\necho localhost:2\necho no-such-host.invalid:1\necho 192.0.2.1:1\n")
    script.chmod(0o755)
    flags = ("-np", "2", "--min-np", "2", "--host-discovery-script", str(script))
    job = _Job(tmp_path, 20, *flags, shell="false {host}")

    assert job.finish() == 0, (tmp_path / "stderr").read_text()
    assert {(done[1], done[2]) for done in job.done} == {(2, 20)}


def test_a_script_that_always_fails_ends_with_its_status(tmp_path: Path) -> None:
    """Nobody is left who has the state."""
    script = tmp_path / "fail.py"
    script.write_text("import sys; sys.exit(9)")
    command = [
        sys.executable,
        "-m",
        "tlkit.runtime.launch.cli",
        "-np",
        "2",
        "--min-np",
        "1",
        sys.executable,
        str(script),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 9, ended.stderr
    assert "exit with status code 9" in ended.stderr
