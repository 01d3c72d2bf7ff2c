"""`tlkit.instrument()`: trainings that use torch.distributed itself are recorded, on real ranks, and are what they were without."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tlkit.collector import analyze
from tlkit.timeline import open_trace
from tlkit.timeline.errors import TraceError

from .ranks import environment_of, free_port, run_ranks

_TRAINING = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import tlkit

RANK, SIZE = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
dist.init_process_group("gloo", rank=RANK, world_size=SIZE)
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.Linear(512, 10)
)

def train(model, steps=12, slow_ms=0, after=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.utils.data.TensorDataset(torch.randn(16 * steps, 64), torch.randint(0, 10, (16 * steps,)))
    for x, y in torch.utils.data.DataLoader(rows, batch_size=16):
        if RANK == 1:
            time.sleep(slow_ms / 1e3)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        after()

def digest():
    return sum(float(p.double().sum()) for p in net.parameters())
"""


#: Of the network above.
PARAMETERS = 64 * 512 + 512 + 2 * 512 + 512 * 512 + 512 + 512 * 10 + 10


def test_ddp_is_recorded_with_its_buckets_and_the_slow_rank_is_found(tmp_path: Path) -> None:
    """Every step has its broadcast of buffers and its buckets, in bytes; what backward waits is no work of its own."""
    run_ranks(
        2,
        _TRAINING
        + """
tlkit.instrument()
train(DistributedDataParallel(net), steps=20, slow_ms=40)
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    trace = open_trace(tmp_path / "t.json")
    trace.check()
    assert trace.meta.runtime == "torch"
    assert trace.meta.size == 2
    assert trace.meta.clock.method == "runtime"
    assert set(trace.steps["step"]) == set(range(20))

    last = trace.collectives.sort_values(["rank", "seq"])
    reduced = last[last["kind"] == "allreduce"].groupby(["rank"], observed=True)["nbytes"].sum()
    assert list(reduced) == [PARAMETERS * 4 * 20] * 2
    # When DDP begins, everything; before each forward pass BatchNorm's three buffers.
    sent = last[last["kind"] == "broadcast"]
    buffers = (512 + 512) * 4 + 8
    assert set(sent["nbytes"]) == {buffers, buffers + PARAMETERS * 4}
    assert set(last["algorithm"]) == {"gloo"}
    assert {kind: set(rows) for kind, rows in last.groupby("kind", observed=True)["op"]} == {
        "allreduce": {"sum"},
        "broadcast": {""},
    }

    analysis = analyze(tmp_path / "t.json")
    assert analysis.verdict.class_ == "straggler"
    assert list(analysis.verdict.ranks) == [1]
    work = analysis.facts.breakdown.own_work_ns.mean(axis=1) / 1e6
    assert work[1] - work[0] == pytest.approx(40, abs=15)


def test_the_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    """Parameters after ten steps are equal to the bit, since DDP itself divides and reduces as before."""
    script = (
        _TRAINING
        + """
if os.environ.get("RECORD"):
    tlkit.instrument()
torch.manual_seed(RANK)
train(DistributedDataParallel(net, bucket_cap_mb=0.2, gradient_as_bucket_view=True), steps=10)
answer(digest())
"""
    )
    recorded = run_ranks(2, script, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json", "RECORD": "1"})
    plain = run_ranks(2, script)
    assert [result.answer for result in recorded] == [result.answer for result in plain]
    assert open_trace(tmp_path / "t.json").collectives["seq"].max() > 20


def test_a_hook_of_the_users_own_is_kept_and_seen(tmp_path: Path) -> None:
    """What it reduces is recorded as it travels: in half the bytes."""
    run_ranks(
        2,
        _TRAINING
        + """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
tlkit.instrument()
model = DistributedDataParallel(net)
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
train(model)
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    reduced = open_trace(tmp_path / "t.json").collectives
    reduced = reduced[reduced["kind"] == "allreduce"]
    assert set(reduced["dtype"]) == {"float16"}
    blocked = open_trace(tmp_path / "t.json").spans
    assert (blocked["name"] == "SYNCHRONIZE").sum() > 0


@pytest.mark.parametrize("what", ["model", "step"])
def test_compiled_models_train_as_before(tmp_path: Path, what: str) -> None:
    """DDP under torch.compile, alone or with the whole step around it: the same parameters, and its buckets are seen."""
    script = (
        _TRAINING
        + """
if os.environ.get("RECORD"):
    tlkit.instrument()
torch.manual_seed(RANK)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def step(x, y):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
if os.environ["WHAT"] == "model":
    model = torch.compile(model, backend="eager")
else:
    step = torch.compile(step, backend="eager")
for _ in range(8):
    step(torch.randn(16, 64), torch.randint(0, 10, (16,)))
answer(digest())
"""
    )
    recorded = run_ranks(2, script, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json", "RECORD": "1", "WHAT": what})
    plain = run_ranks(2, script, {"WHAT": what})
    assert [result.answer for result in recorded] == [result.answer for result in plain]
    trace = open_trace(tmp_path / "t.json")
    trace.check()
    reduced = trace.collectives[trace.collectives["kind"] == "allreduce"]
    assert list(reduced.groupby("rank")["nbytes"].sum()) == [PARAMETERS * 4 * 8] * 2


def test_fully_sharded_training_is_recorded(tmp_path: Path) -> None:
    """FSDP's gathers before forward and backward, and its scatters."""
    run_ranks(
        2,
        _TRAINING
        + """
from torch.distributed.fsdp import fully_shard
tlkit.instrument()
for layer in net:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer)
fully_shard(net)
train(net)
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    trace = open_trace(tmp_path / "t.json")
    kinds = trace.collectives.groupby(["rank", "kind"], observed=True).size()
    for rank in (0, 1):
        assert kinds[rank, "reducescatter"] == 4 * 12
        assert kinds[rank, "allgather"] >= 4 * 12
    # The ranks agree on every number, kind and size.
    described = trace.collectives.astype({"kind": "str"})[["rank", "seq", "kind", "nbytes"]]
    of = [set(map(tuple, described[described["rank"] == rank].drop(columns="rank").to_numpy())) for rank in (0, 1)]
    assert of[0] == of[1]


def test_groups_calls_and_blocking_are_recorded(tmp_path: Path) -> None:
    """Functions by name and by position, blocking and not, on a group of some ranks."""
    results = run_ranks(
        3,
        _TRAINING
        + """
recording = tlkit.instrument()
pair = dist.new_group([0, 2])
value = torch.ones(1000)
dist.all_reduce(value)
work = dist.all_reduce(value, dist.ReduceOp.MAX, async_op=True)
time.sleep(0.05 * RANK)
work.wait()
if RANK != 1:
    dist.broadcast(torch.ones(10, dtype=torch.int64), src=2, group=pair)
out = [torch.zeros(5) for _ in range(3)]
dist.all_gather(out, torch.ones(5))
dist.barrier()
recording.stop()
before = torch.nn.Module.__call__
dist.all_reduce(value)
answer(float(value[0]))
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    assert [result.answer for result in results] == [9.0] * 3
    trace = open_trace(tmp_path / "t.json")
    world = trace.collectives[trace.collectives["process_set"] == 0]
    # To make the group is a barrier.
    assert list(world[world["rank"] == 1]["kind"]) == ["barrier", "allreduce", "allreduce", "allgather", "barrier"]
    assert list(world[world["rank"] == 0]["op"])[1:3] == ["sum", "max"]
    assert list(world[world["rank"] == 2]["nbytes"]) == [0, 4000, 4000, 20, 0]
    of_pair = trace.collectives[trace.collectives["process_set"] != 0]
    assert list(of_pair["rank"]) == [0, 2]
    assert set(of_pair["dtype"]) == {"int64"}
    assert of_pair["process_set"].nunique() == 1
    assert (trace.spans[trace.spans["rank"] == 1]["name"] == "SYNCHRONIZE").any()


def test_a_loop_without_ranks_is_recorded_and_the_line_costs_nothing_when_off(tmp_path: Path) -> None:
    """One process, no process group; without a timeline torch is left as it is."""
    script = """
import sys, torch, tlkit
call = torch.nn.Module.__call__
recording = tlkit.instrument(sys.argv[1] if len(sys.argv) > 1 else None)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
print(torch.nn.Module.__call__ is call)
"""
    environment = {key: value for key, value in environment_of(0, 1, 1).items() if not key.startswith("HOROVOD_")}
    command = [sys.executable, "-c", script]
    off = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    on = subprocess.run([*command, f"{tmp_path}/t.json"], env=environment, capture_output=True, text=True, check=True)
    assert (off.stdout, on.stdout) == ("True\n", "False\n")
    trace = open_trace(tmp_path / "t.json")
    assert len(trace.steps) == 5
    assert {"FORWARD", "BACKWARD", "OPTIMIZER_STEP"} <= set(trace.spans["name"])


def test_derivatives_that_a_loss_is_made_of_are_forward(tmp_path: Path) -> None:
    """Of networks that know physics, or a penalty on gradients; their values are what they were."""
    script = """
import sys, torch, tlkit
torch.manual_seed(0)
recording = tlkit.instrument(sys.argv[1] if len(sys.argv) > 1 else None)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    rows = torch.randn(4, 8, requires_grad=True)
    optimizer.zero_grad()
    (slope,) = torch.autograd.grad(net(rows).sum(), rows, create_graph=True)
    slope.square().sum().backward()
    optimizer.step()
print(float(next(net.parameters()).sum()))
"""
    environment = {key: value for key, value in environment_of(0, 1, 1).items() if not key.startswith("HOROVOD_")}
    command = [sys.executable, "-c", script]
    off = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    on = subprocess.run([*command, f"{tmp_path}/t.json"], env=environment, capture_output=True, text=True, check=True)
    trace = open_trace(tmp_path / "t.json")
    forward = trace.spans[trace.spans["name"] == "FORWARD"]
    modules = [json.loads(trace.raw_args[row])["module"] for row in forward["args_row"]]

    assert on.stdout == off.stdout
    assert modules == ["Sequential", "torch.autograd.grad"] * 5
    assert (trace.spans["name"] == "BACKWARD").sum() == 5


def test_what_a_closure_does_is_no_update(tmp_path: Path) -> None:
    """Lightning runs forward and backward inside the optimizer's step; LBFGS several times, with updates in between."""
    script = """
import sys, time, torch, tlkit
tlkit.instrument(sys.argv[1])
net = torch.nn.Linear(8, 8)
for optimizer in (torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.LBFGS(net.parameters(), max_iter=3)):
    def closure():
        optimizer.zero_grad()
        loss = (net(torch.ones(4, 8)) - 1).square().sum()
        time.sleep(0.02)
        loss.backward()
        return loss
    for _ in range(3):
        assert (optimizer.step(closure) if type(optimizer) is torch.optim.SGD else optimizer.step(closure=closure)) > 0
"""
    environment = {key: value for key, value in environment_of(0, 1, 1).items() if not key.startswith("HOROVOD_")}
    subprocess.run([sys.executable, "-c", script, f"{tmp_path}/t.json"], env=environment, check=True)
    trace = open_trace(tmp_path / "t.json")
    spans = trace.spans
    updates = spans[spans["name"] == "OPTIMIZER_STEP"]
    inside = [
        ((updates["start_ns"] < start) & (start < updates["start_ns"] + updates["dur_ns"])).any()
        for start in spans.loc[spans["name"] == "FORWARD", "start_ns"]
    ]

    assert len(inside) > 6
    assert not any(inside)
    assert len(updates) > 6
    assert len(trace.steps) == 3  # those of the optimizer that stepped first


def test_ranks_that_have_not_met_are_told_where_to_call() -> None:
    """One clear error instead of as many runs as ranks."""
    ended = subprocess.run(
        [sys.executable, "-c", "import tlkit; tlkit.instrument('t.json')"],
        env=environment_of(0, 2, free_port()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "call tlkit.instrument() after torch.distributed.init_process_group()" in ended.stderr


def test_a_profile_lies_in_the_timeline_of_its_run(tmp_path: Path) -> None:
    """torch.profiler's operators are where the timeline's phases are, and do not change the diagnosis; another run's are refused."""
    profiled = (
        _TRAINING
        + """
tlkit.instrument()
P = torch.profiler
schedule = P.schedule(wait=2, warmup=1, active=4, repeat=2)
with P.profile(activities=[P.ProfilerActivity.CPU], schedule=schedule, on_trace_ready=tlkit.trace_handler()) as profiler:
    train(DistributedDataParallel(net), steps=16, slow_ms=20, after=profiler.step)
"""
    )
    for run in ("one", "other"):
        (tmp_path / run).mkdir()
        run_ranks(2, profiled, {"HOROVOD_TIMELINE": f"{tmp_path}/{run}/t.json"})
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        "t.json", "t.profile.rank0.json", "t.profile.rank1.json", "t.profile2.rank0.json", "t.profile2.rank1.json", "t.rank1.json",
    ]  # fmt: skip
    json.loads((tmp_path / "one/t.profile.rank0.json").read_bytes())
    files = [tmp_path / "one/t.json", *(tmp_path / "one").glob("t.profile.rank*.json")]
    merged = open_trace(files)
    merged.check()
    for rank in (0, 1):
        spans = merged.spans[merged.spans["rank"] == rank]
        steps = spans[spans["name"] == "OPTIMIZER_STEP"]
        inner = spans[spans["name"].astype("str").str.startswith("Optimizer.step#")]
        assert len(inner) == 4
        assert inner["lane"].astype("str").str.startswith("profiler: ").all()
        assert json.loads(merged.raw_args[int(inner["args_row"].iloc[0])]) is not None
        # Hooks of ours run before and after the operator, and now and then a busy machine lets one of them wait.
        starts, ends = steps["start_ns"].to_numpy(), (steps["start_ns"] + steps["dur_ns"]).to_numpy()
        apart = []
        for start, duration in inner[["start_ns", "dur_ns"]].to_numpy():
            nearest = int(np.argmin(np.abs(ends - start - duration)))
            apart += [abs(int(starts[nearest] - start)), abs(int(ends[nearest] - start - duration))]
        assert np.median(apart) < 2_000_000
    alone, together = analyze(tmp_path / "one/t.json"), analyze(files)
    assert together.verdict.class_ == alone.verdict.class_
    parts, parts_alone = together.facts.breakdown.parts_ns, alone.facts.breakdown.parts_ns
    assert all((parts[name] == parts_alone[name]).all() for name in parts)
    with pytest.raises(TraceError, match="not taken during the run"):
        open_trace([tmp_path / "one/t.json", *(tmp_path / "other").glob("t.profile.rank*.json")])


def test_clocks_that_are_apart_are_brought_together(tmp_path: Path) -> None:
    """Rank 1's monotonic clock is 5,000 s ahead: the ranks measure that through torch's store."""
    probe = subprocess.run(["unshare", "-T", "--monotonic", "5000", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("time namespaces cannot be made here")
    script = "import os, sys, time, torch\n" + _TRAINING + "tlkit.instrument()\ntrain(DistributedDataParallel(net))\n"
    port = free_port()
    processes = []
    for rank in (0, 1):
        apart = ["unshare", "-T", "--monotonic", "5000", "--fork"] if rank else []
        environment = environment_of(rank, 2, port) | {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"}
        processes.append(subprocess.Popen([*apart, sys.executable, "-c", script], env=environment))
    assert [process.wait(90) for process in processes] == [0, 0]
    trace = open_trace(tmp_path / "t.json")
    measured = trace.meta.clock.ranks[1]
    assert abs(measured.offset_ns + 5_000_000_000_000) <= measured.uncertainty_ns < 5_000_000
    ends = trace.collectives.assign(end_ns=trace.collectives["start_ns"] + trace.collectives["dur_ns"])
    apart_ns = ends.groupby("seq")["end_ns"].agg(lambda end: end.max() - end.min()).median()
    assert apart_ns < 10_000_000


def test_this_torch_has_what_is_wrapped() -> None:
    """A name that a new torch drops would silently not be recorded."""
    from tlkit.runtime.instrument.torch_collectives import _FUNCTIONS

    present = [name for name in _FUNCTIONS if hasattr(torch.distributed, name)]
    assert len(present) >= 10


def test_what_was_recorded_before_is_kept(tmp_path: Path) -> None:
    """A second recording of the process, and a process that torchrun has started anew, write beside the first."""
    script = """
import torch, tlkit
for _ in range(2):
    with tlkit.instrument() as recording:
        torch.nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward()
    print(recording.path.name)
"""
    environment = {key: value for key, value in environment_of(0, 1, 1).items() if not key.startswith("HOROVOD_")}
    environment["HOROVOD_TIMELINE"] = str(tmp_path / "t.json")
    names = []
    for restarts in ("0", "2"):
        ended = subprocess.run(
            [sys.executable, "-c", script], env=environment | {"TORCHELASTIC_RESTART_COUNT": restarts},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        names += ended.stdout.split()
    assert names == ["t.json", "t.restart1.json", "t.restart2.json", "t.restart3.json"]
    for name in names:
        assert "FORWARD" in set(open_trace(tmp_path / name).spans["name"])


def test_what_cannot_be_recorded_runs_all_the_same(tmp_path: Path) -> None:
    """Collectives that fail raise what they raise without us, and a group that cannot be described is no obstacle."""
    results = run_ranks(
        2,
        _TRAINING
        + """
tlkit.instrument()
said = []
for wrong in (lambda: dist.all_reduce("text"), lambda: dist.all_gather([], torch.ones(2)), lambda: dist.broadcast(torch.ones(1), src=7)):
    try:
        wrong()
    except Exception as error:
        said.append(type(error).__name__)
from tlkit.runtime.instrument import collective_spans
collective_spans.ProcessGroupContext = None
other = dist.new_group([0, 1])
value = torch.ones(3)
dist.all_reduce(value, group=other)
answer([said, value.sum().item()])
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    for result in results:
        said, total = result.answer
        assert len(said) == 3
        assert total == 6.0
    open_trace(tmp_path / "t.json").check()


_TENSOR_PARALLEL = """
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import tlkit

RANK = int(os.environ["HOROVOD_RANK"])
dist.init_process_group("gloo", rank=RANK, world_size=2)
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
    def forward(self, x):
        return self.narrow(torch.relu(self.wide(x)))

def train(steps=15, slow_ms=0):
    torch.manual_seed(0)
    net = torch.nn.Sequential(Block(), Block())
    mesh = init_device_mesh("cpu", (2,))
    for block in net:
        parallelize_module(block, mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        if RANK == 1:
            time.sleep(slow_ms / 1e3)
        optimizer.zero_grad()
        loss = net(torch.randn(32, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()
"""


def test_tensor_parallel_training_is_recorded(tmp_path: Path) -> None:
    """Functional collectives, with what they carry, and the rank that the other one waits for in them."""
    results = run_ranks(
        2,
        _TENSOR_PARALLEL
        + """
plain = train()
tlkit.instrument()
answer([plain, train(slow_ms=30)])
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    for result in results:
        plain, recorded = result.answer
        assert plain == recorded
    trace = open_trace(tmp_path / "t.json")
    trace.check()
    # Each block reduces what comes out of it; the second one also the gradient of what came in.
    assert set(trace.collectives["kind"]) == {"allreduce"}
    assert set(trace.collectives["nbytes"]) == {32 * 64 * 4}
    assert list(trace.collectives.groupby("rank").size()) == [3 * 15] * 2
    assert set(trace.collectives["process_set"]) == {0}
    verdict = analyze(tmp_path / "t.json").verdict
    assert (verdict.class_, verdict.cause, verdict.ranks) == ("straggler", "slow-host-code", (1,))


def test_functional_collectives_compile_as_before(tmp_path: Path) -> None:
    """Into one graph, without a break; coalesced ones and those that nobody waits for are no trouble."""
    results = run_ranks(
        2,
        _TENSOR_PARALLEL
        + """
tlkit.instrument()
group = dist.group.WORLD
def whole(x):
    return functional.all_reduce(x * 2, "sum", group) + functional.all_gather_tensor(x, 0, group).sum()
compiled = torch.compile(whole, backend="eager", fullgraph=True)
values = [whole(torch.ones(3)).tolist(), compiled(torch.ones(3)).tolist()]
forgotten = functional.all_reduce(torch.ones(66), "max", group)
values.append(functional.all_reduce(torch.ones(77), "max", group).tolist()[:3])
both = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", group)
across = functional.all_gather_tensor(torch.full((2, 2), float(RANK)), 1, group)
answer([values, [part.tolist() for part in both], across.tolist(), functional.all_to_all_single(torch.arange(2.0), None, None, group).tolist()])
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    for rank, result in enumerate(results):
        values, both, across, exchanged = result.answer
        assert values == [[10.0] * 3] * 2 + [[1.0] * 3]
        assert both == [[2.0] * 2, [2.0] * 3]
        assert across == [[0.0, 0.0, 1.0, 1.0]] * 2
        assert exchanged == [float(rank)] * 2
    trace = open_trace(tmp_path / "t.json")
    trace.check()
    for _, calls in trace.collectives.groupby("rank"):
        assert {"allgather", "alltoall"} <= set(calls["kind"])
        assert (calls["nbytes"] == 77 * 4).sum() == 1
        assert (calls["nbytes"] == 66 * 4).sum() == 0  # nobody waited for it


def test_the_stages_of_a_pipeline_wait_for_messages(tmp_path: Path) -> None:
    """One waits for the other by turns: moving work from one to the other makes the step no shorter, so none is called slow."""
    run_ranks(
        2,
        """
        import torch.distributed as dist
        import tlkit
        rank = int(os.environ["HOROVOD_RANK"])
        dist.init_process_group("gloo", rank=rank, world_size=2)
        tlkit.instrument()
        class Busy(torch.nn.Module):
            def forward(self, x):
                until = time.thread_time() + (0.01 if rank else 0.03)
                while time.thread_time() < until:
                    pass
                return x
        net = torch.nn.Sequential(torch.nn.Linear(64, 64), Busy())
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(15):
            optimizer.zero_grad()
            if rank == 0:
                out = net(torch.randn(8, 64))
                dist.send(out.detach(), 1)
                gradient = torch.empty_like(out)
                dist.recv(gradient, 1)
                out.backward(gradient)
            else:
                x = torch.empty(8, 64)
                dist.recv(x, 0)
                x.requires_grad_()
                net(x).pow(2).mean().backward()
                dist.send(x.grad, 0)
            optimizer.step()
        """,
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    analysis = analyze(tmp_path / "t.json")
    findings = {finding.cause: finding for finding in analysis.findings}
    waits = findings["waits-for-messages"]
    work = waits.evidence["own_work_by_rank_ns"]
    assert work["0"] > work["1"]
    assert not {"slow-forward", "slow-backward"} & set(findings)
    low, high = waits.gain_interval
    # With messages under way all the time the step is what rank 0 works, 30 of 40 ms and more.
    assert low == 0
    assert 0.1 < high < 0.5


def test_another_group_of_all_ranks_counts_for_itself(tmp_path: Path) -> None:
    """Two groups of the same ranks do not mix their collectives, however they take turns."""
    run_ranks(
        2,
        _TRAINING
        + """
other = dist.new_group([0, 1])
tlkit.instrument()
for number in range(6):
    dist.all_reduce(torch.ones(10 + number), group=other if number % 3 else None)
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    calls = open_trace(tmp_path / "t.json").collectives
    assert calls.groupby(["process_set", "seq"], observed=True)["nbytes"].nunique().eq(1).all()
    assert sorted(calls.groupby("process_set", observed=True).size()) == [4, 8]


@pytest.mark.parametrize("early", ["1", ""])
def test_a_model_that_was_wrapped_too_early_is_told(tmp_path: Path, early: str) -> None:
    """Once; a model of an earlier recording is recorded again, and no reason to speak."""
    results = run_ranks(
        2,
        _TRAINING
        + """
if os.environ["EARLY"]:
    model = DistributedDataParallel(net)
    tlkit.instrument(os.environ["SECOND"])
else:
    with tlkit.instrument(os.environ["FIRST"]):
        model = DistributedDataParallel(net)
    tlkit.instrument(os.environ["SECOND"])
train(model, steps=3)
""",
        {"FIRST": f"{tmp_path}/first.json", "SECOND": f"{tmp_path}/t.json", "EARLY": early},
    )
    said = [result.stderr.count("created before tlkit.instrument()") for result in results]
    assert said == [1 if early else 0] * 2
    reduced = open_trace(tmp_path / "t.json").collectives["kind"].eq("allreduce")
    assert reduced.any() != bool(early)


def test_collectives_are_recorded_after_the_runtime_was_there(tmp_path: Path) -> None:
    """The runtime leaves its instruments in place; those of torch.distributed come in beside them."""
    run_ranks(
        2,
        """
hvd.init()
hvd.start_timeline(os.environ["FIRST"])
hvd.shutdown()
"""
        + _TRAINING
        + """
tlkit.instrument(os.environ["SECOND"])
dist.all_reduce(torch.ones(8))
""",
        {"HOROVOD_TIMELINE": "DYNAMIC", "FIRST": f"{tmp_path}/first.json", "SECOND": f"{tmp_path}/t.json"},
    )
    assert list(open_trace(tmp_path / "t.json").collectives["kind"]) == ["allreduce"] * 2


def test_a_work_that_is_done_when_python_ends_does_not_abort(tmp_path: Path) -> None:
    """Its thread, which tells when the collective ended, gets the interpreter's lock before that is too late."""
    script = """
import torch.distributed as dist
import tlkit
from tlkit.runtime.instrument.collective_spans import UnderWay

class Slow:
    def __del__(self):
        time.sleep(1)  # the interpreter is at its end, and other threads may run

slow, was = Slow(), UnderWay.finished

def finished(self, *args):
    time.sleep(0.3)
    was(self, *args)

dist.init_process_group("gloo", rank=0, world_size=1)
tlkit.instrument()
UnderWay.finished = finished
dist.all_reduce(torch.ones(3), async_op=True)
"""
    run_ranks(1, script, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"})

    assert list(open_trace(tmp_path / "t.json").collectives["kind"]) == ["allreduce"]


def test_the_beginning_of_an_epoch_is_loading(tmp_path: Path) -> None:
    """Workers stay, and the sampler draws before the first batch is asked for."""
    script = """
import tlkit

class Slow(torch.utils.data.SequentialSampler):
    def __iter__(self):
        time.sleep(0.05)
        return super().__iter__()

tlkit.instrument()
rows = torch.utils.data.TensorDataset(torch.randn(32, 8))
loader = torch.utils.data.DataLoader(rows, 8, sampler=Slow(rows), num_workers=1, persistent_workers=True)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(3):
    for (x,) in loader:
        net(x).sum().backward()
        optimizer.step()
"""
    run_ranks(1, script, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"})
    trace = open_trace(tmp_path / "t.json")
    trace.check()
    begun = trace.spans[trace.spans["name"] == "EPOCH_START"]

    assert set(begun["category"]) == {"data"}
    assert len(begun) == 2, "the first epoch starts the workers"
    assert (begun["dur_ns"] >= 50_000_000).all()
