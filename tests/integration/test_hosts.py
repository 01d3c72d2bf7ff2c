"""Several hosts: two network namespaces joined by a cable, each a host as far as the ranks can tell."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.model.clocks import find_clocks
from tlkit.timeline.model.trace import Clock

from .ranks import REPOSITORY, TL_RUN

_SCRIPT = """
import json, os, sys, time
import torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.full((100_000,), float(hvd.rank())), op=hvd.Sum)
said = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), total[0].item()]
assert os.environ["SECRET"] == "travels unseen"
print("SAID " + json.dumps(said), flush=True)
if "wait" in sys.argv:
    time.sleep(60)
hvd.shutdown()
sys.exit(7 if "fail" in sys.argv and said[0] == 1 else 0)
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """Addresses of two hosts; the names of their namespaces are `tlkit-` and the address."""
    first, second = "10.213.77.1", "10.213.77.2"
    names = [f"tlkit-{first}", f"tlkit-{second}"]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "tlveth1", "netns", names[0], "type", "veth", "peer", "name", "tlveth2", "netns", names[1])
        for number, (name, address) in enumerate(zip(names, (first, second), strict=True), start=1):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", f"tlveth{number}")
            _ip("-n", name, "link", "set", f"tlveth{number}", "up")
            _ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield first, second
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "TLKIT_"))}
    return kept | {
        "PYTHONPATH": str(REPOSITORY),
        "TLKIT_REMOTE_SHELL": "ip netns exec tlkit-{host}",
        "SECRET": "travels unseen",
        "OMP_NUM_THREADS": "1",
    }


def test_ranks_on_two_hosts_find_each_other(hosts: tuple[str, str], tmp_path: Path) -> None:
    """Over the cable, with the local and cross ranks of their hosts; the first failure is the job's status."""
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    first, second = hosts
    command = [*TL_RUN, "-np", "3", "-H", f"{first}:2,{second}:2", sys.executable, str(script)]
    ended = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=90, check=False)
    said = sorted(json.loads(line.partition("SAID ")[2]) for line in ended.stdout.splitlines() if "SAID " in line)

    assert ended.returncode == 0, ended.stderr
    assert said == [[0, 3, 0, 2, 0, 2, 3.0], [1, 3, 1, 2, 0, 1, 3.0], [2, 3, 0, 1, 1, 2, 3.0]]
    ended = subprocess.run(
        [*command, "fail"], env=_environment(), capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == 7, ended.stderr


def _processes_of(script: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(script).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_behind_on_other_hosts(hosts: tuple[str, str], tmp_path: Path, number: int) -> None:
    """Whether the launcher is asked to end or is killed."""
    script = tmp_path / f"train{number}.py"
    script.write_text(_SCRIPT)
    command = [*TL_RUN, "-np", "2", "-H", f"{hosts[0]}:1,{hosts[1]}:1", sys.executable, str(script), "wait"]
    launcher = subprocess.Popen(
        command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert launcher.stdout is not None
    said = [launcher.stdout.readline() for _ in range(2)]
    assert all("SAID" in line for line in said)
    launcher.send_signal(number)
    launcher.wait(30)
    deadline = time.monotonic() + 15
    while _processes_of(script) and time.monotonic() < deadline:
        time.sleep(0.1)
    launcher.stdout.close()

    assert _processes_of(script) == []


def test_a_host_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """One line that says which, and what its shell says."""
    environment = _environment() | {"TLKIT_REMOTE_SHELL": f"sh {tmp_path}/shell {{host}}"}
    (tmp_path / "shell").write_text('[ "$1" = bad-host ] && { echo "$1: no route" >&2; exit 255; }; shift; exec "$@"\n')
    command = [*TL_RUN, "-np", "2", "-H", "bad-host:2", "true"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 2
    assert ended.stderr == (
        "tl-run: cannot reach bad-host (bad-host: no route): ssh has to work there without a password\n"
    )


def test_ranks_that_others_start_need_a_secret_across_hosts(hosts: tuple[str, str]) -> None:
    """Without one, one sentence says what to set; with different ones they do not meet."""
    script = "import horovod.torch as hvd; hvd.init(); print(hvd.size()); hvd.shutdown()"

    def run(*secrets: str) -> list[tuple[int, str]]:
        processes = []
        for rank, (address, secret) in enumerate(zip(hosts, secrets, strict=True)):
            environment = {
                **_environment(), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": hosts[0], "MASTER_PORT": "29872", "TLKIT_JOB_SECRET": secret, "HOROVOD_START_TIMEOUT": "5",
                "HOROVOD_HOSTNAME": address,
            }  # fmt: skip
            command = ["ip", "netns", "exec", f"tlkit-{address}", sys.executable, "-c", script]
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    cwd=REPOSITORY,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        said = [process.communicate(timeout=60)[0] for process in processes]
        return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]

    assert [(code, text[-2:]) for code, text in run("one", "one")] == [(0, "2\n"), (0, "2\n")]
    for code, text in run("", ""):
        assert code == 1
        assert "set TLKIT_JOB_SECRET to the same random text on all of them" in text
    (_, first), (_, second) = run("one", "another")
    assert "ranks [1] did not connect within 5 s" in first
    assert "rank 1 and rank 0 have different secrets" in second


def test_elastic_ranks_are_started_on_other_hosts(hosts: tuple[str, str], tmp_path: Path) -> None:
    """And leave when their host is gone."""
    script = tmp_path / "train.py"
    script.write_text("""
import os, sys, time
import torch
import horovod.torch as hvd
hvd.init()
@hvd.elastic.run
def train(state):
    while state.step < 100:
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum)[0].item()
        sys.stdout.write(f"STEP {total} {hvd.cross_size()}\\n")
        sys.stdout.flush()
        state.step += 1
        time.sleep(0.05)
        state.commit()
train(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0))
""")
    first, second = hosts
    listed = tmp_path / "hosts"
    listed.write_text(f"{first}:2\n{second}:1\n")
    discover = tmp_path / "discover.sh"
    discover.write_text(f"#!/bin/sh\ncat {listed}\n")
    discover.chmod(0o755)
    # The launcher is on the first host itself: workers there ask it by its Unix socket, those of the second by TCP.
    command = ["ip", "netns", "exec", f"tlkit-{first}", *TL_RUN, "-np", "3", "--min-np", "1"]
    command += ["--host-discovery-script", str(discover), sys.executable, str(script)]
    log = (tmp_path / "stderr").open("w")
    launcher = subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, stderr=log, text=True)
    assert launcher.stdout is not None
    seen = []
    for line in launcher.stdout:
        if "STEP" in line:
            seen.append(tuple(map(float, line.partition("STEP ")[2].split())))
            if seen[-1] == (3.0, 2.0):
                listed.write_text(f"{first}:2\n")
    launcher.stdout.close()
    log.close()

    assert launcher.wait(60) == 0, (tmp_path / "stderr").read_text()
    assert seen[-1] == (2.0, 1.0)
    assert (3.0, 2.0) in seen


def test_clocks_that_are_apart_are_brought_together(hosts: tuple[str, str], tmp_path: Path) -> None:
    """Rank 1's monotonic clock is 5,000 s ahead, in a time namespace: the runtime measures that, and the collectives tell it as well."""
    probe = subprocess.run(["unshare", "-T", "--monotonic", "5000", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("time namespaces cannot be made here")
    script = """
import time
import torch
import horovod.torch as hvd
hvd.init()
net = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(4)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), net.named_parameters())
for _ in range(150):
    optimizer.zero_grad()
    net(torch.randn(8, 200)).sum().backward()
    optimizer.step()
hvd.shutdown()
"""
    timeline = tmp_path / "t.json"
    processes = []
    for rank, address in enumerate(hosts):
        environment = {
            **_environment(), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": hosts[0], "MASTER_PORT": "29871", "HOROVOD_HOSTNAME": address, "HOROVOD_TIMELINE": str(timeline),
            "TLKIT_JOB_SECRET": "known to both",
        }  # fmt: skip
        apart = ["unshare", "-T", "--monotonic", "5000", "--fork"] if rank else []
        command = ["ip", "netns", "exec", f"tlkit-{address}", *apart, sys.executable, "-c", script]
        processes.append(subprocess.Popen(command, env=environment, cwd=REPOSITORY))
    assert [process.wait(90) for process in processes] == [0, 0]
    trace = open_trace(timeline)
    measured = trace.meta.clock.ranks[1]
    assert trace.meta.clock.method == "runtime"
    assert abs(measured.offset_ns + 5_000_000_000_000) <= measured.uncertainty_ns < 5_000_000

    # As if nobody had measured: rank 1 in front by a tenth of a second.
    ahead_ns = 100_000_000
    table = trace.collectives.copy()
    table.loc[table["rank"] == 1, "start_ns"] += ahead_ns
    unaligned = replace(
        trace, collectives=table, meta=replace(trace.meta, clock=Clock(method="none", uncertainty_ns=0))
    )
    clocks, unknown = find_clocks(unaligned)
    assert not unknown
    middle = float(table[table["rank"] == 1]["start_ns"].mean())
    found_ns = clocks[1].offset_ns + clocks[1].drift * middle
    assert abs(found_ns + ahead_ns) <= clocks[1].uncertainty_ns + measured.uncertainty_ns
    assert clocks[1].uncertainty_ns < 20_000_000
