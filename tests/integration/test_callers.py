"""Real ranks: who called each collective, what a wait is for, and both ends of a message."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tlkit.collector import analyze
from tlkit.timeline import open_trace
from tlkit.timeline.model.trace import Trace

from .ranks import run_ranks

STEPS = 4


def opened(path: Path) -> Trace:
    trace = open_trace(path)
    trace.check()
    return trace


def calls_of(trace: Trace, rank: int) -> dict[tuple[str, str, int], int]:
    """Collectives of a rank by kind, caller and whether they block."""
    mine = trace.collectives[trace.collectives["rank"] == rank]
    sizes: Any = mine.groupby(["kind", "caller", "blocking"], observed=True).size()
    return dict(sizes.to_dict())


def waits_of(trace: Trace, rank: int) -> list[dict[str, Any]]:
    """Args of the SYNCHRONIZE spans of a rank."""
    spans = trace.spans[(trace.spans["rank"] == rank) & (trace.spans["name"] == "SYNCHRONIZE")]
    return [json.loads(trace.raw_args[row]) for row in spans["args_row"] if row >= 0]


def assert_waits_join(trace: Trace) -> None:
    """Every blocking collective that a rank had to wait for has its wait, by number, with the same caller and line."""
    for rank in (0, 1):
        mine = trace.collectives[trace.collectives["rank"] == rank].set_index(["process_set", "seq"])
        waits = [wait for wait in waits_of(trace, rank) if wait.get("caller") == "user"]
        assert waits
        for wait in waits:
            row = mine.loc[wait["process_set"], wait["seq"]]
            assert (row["caller"], row["where"]) == ("user", wait["where"])


def object_calls(trace: Trace, rank: int) -> int:
    """How many spans say that an object was sent; each holds the two collectives that carried it."""
    spans = trace.spans[(trace.spans["rank"] == rank) & (trace.spans["name"] == "OBJECT")].sort_values("start_ns")
    starts, ends = spans["start_ns"].to_numpy(), (spans["start_ns"] + spans["dur_ns"]).to_numpy()
    carried = trace.collectives[(trace.collectives["rank"] == rank) & (trace.collectives["caller"] == "object")]
    call = starts.searchsorted(carried["submitted_ns"].to_numpy(), side="right") - 1
    assert (carried["submitted_ns"].to_numpy() < ends[call]).all()
    assert set(np.bincount(call)[np.bincount(call) > 0]) == {2}
    return len(spans)


def test_calls_of_horovod_s_api_carry_who_called(tmp_path: Path) -> None:
    """Gradients, a metric, an object, parameters, batch norm and barriers are told from each other; lines are the script's."""
    run_ranks(
        2,
        f"""
hvd.init()
net = torch.nn.Sequential(torch.nn.Linear(8, 8), hvd.SyncBatchNorm(8), torch.nn.Linear(8, 2))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net.named_parameters())
hvd.broadcast_parameters(net.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for step in range({STEPS}):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    hvd.allreduce(torch.ones(3), name="loss")
    hvd.synchronize(hvd.allreduce_async(torch.ones(3), name="later"))
    hvd.broadcast_object(dict(step=step))
    hvd.barrier()
hvd.join()
hvd.shutdown()
""",
        # Small broadcasts would travel together, more or fewer of them.
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json", "HOROVOD_SMALL_TENSOR_BYTES": "0"},
    )
    trace = opened(tmp_path / "t.json")

    for rank in (0, 1):
        assert calls_of(trace, rank) == {
            # Parameters and buffers one by one, the optimizer's state as an object of two parts and the momentum of each.
            ("broadcast", "parameters", 1): 9 + 2 + 6,
            ("allreduce", "norm", 1): 2 * STEPS,
            ("allreduce", "gradient", 0): STEPS,
            ("allreduce", "user", 1): STEPS,
            ("allreduce", "user", 0): STEPS,
            ("broadcast", "object", 1): 2 * STEPS,
            ("barrier", "barrier", 1): STEPS,
        }
        assert object_calls(trace, rank) == STEPS + 1  # and the optimizer's state
    tensors = trace.tensors.assign(name=trace.tensors["name"].astype(str)).drop_duplicates(["name", "caller"])
    caller_of = dict(zip(tensors["name"], tensors["caller"], strict=True))
    assert len(tensors) == len(caller_of)
    assert caller_of["allreduce.loss"] == "user"
    assert caller_of["allreduce.0.weight"] == "gradient"
    assert caller_of["broadcast.0.weight"] == "parameters"
    assert caller_of["broadcast.optimizer_state.sz"] == "parameters"
    assert caller_of["join.noname"] == "join"
    lines = trace.collectives.groupby("caller", observed=True)["where"].agg(lambda where: sorted(set(where)))
    assert lines["gradient"] == lines["norm"] == [""]
    assert [len(lines[caller]) for caller in ("user", "object", "barrier", "parameters")] == [2, 1, 1, 2]
    assert all(where.startswith("<string>:") for where in lines["user"])
    assert_waits_join(trace)


def test_calls_of_torch_distributed_carry_who_called(tmp_path: Path) -> None:
    """DDP's buckets and buffers, SyncBatchNorm, objects and the script's own calls; what was asked for later does not block."""
    run_ranks(
        2,
        f"""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import tlkit
RANK = int(os.environ["HOROVOD_RANK"])
dist.init_process_group("gloo", rank=RANK, world_size=2)
tlkit.instrument()
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
pair = [torch.ones(2), torch.ones(2)] if RANK == 0 else None
for step in range({STEPS}):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    dist.broadcast_object_list([step], src=0)
    dist.reduce(torch.ones(2), 0)
    dist.gather(torch.ones(2), pair, 0)
    dist.scatter(torch.ones(2), pair, 0)
    dist.barrier()
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    trace = opened(tmp_path / "t.json")

    for rank in (0, 1):
        found = calls_of(trace, rank)
        # How many buckets there are in a step is up to DDP.
        assert found.pop(("allreduce", "gradient", 0)) >= STEPS
        # When DDP begins, and buffers before each forward but the first.
        assert found.pop(("broadcast", "parameters", 1)) >= STEPS
        assert found == {
            ("allreduce", "user", 1): STEPS,
            ("allreduce", "user", 0): STEPS,
            ("broadcast", "object", 1): 2 * STEPS,
            ("reduce", "user", 1): STEPS,
            ("gather", "user", 1): STEPS,
            ("scatter", "user", 1): STEPS,
            ("barrier", "barrier", 1): STEPS,
        }
        assert object_calls(trace, rank) == STEPS
    assert_waits_join(trace)
    named = [wait for wait in waits_of(trace, 0) if wait.get("caller") == "gradient"]
    assert {wait["name"] for wait in named} == {"ALLREDUCE"}


def test_groups_that_a_loop_makes_are_told(tmp_path: Path) -> None:
    """A group of all ranks, made in each step: a call of the script's, named with its line, and no code of the loop."""
    run_ranks(
        2,
        """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import tlkit
RANK = int(os.environ["HOROVOD_RANK"])
dist.init_process_group("gloo", rank=RANK, world_size=2)
tlkit.instrument()
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
groups = []  # to take one apart takes long, too
for step in range(30):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    groups.append(dist.new_group([0, 1]))
    dist.all_reduce(torch.ones(3), group=groups[-1])
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    trace = opened(tmp_path / "t.json")
    for rank in (0, 1):
        made = trace.collectives[(trace.collectives["rank"] == rank) & (trace.collectives["caller"] == "group")]
        assert list(made["kind"].astype(str)) == ["barrier"] * 30
        assert set(made["process_set"]) == {0}
        assert all(str(where).startswith("<string>:") for where in made["where"])
    first = next(one for one in analyze(trace).findings if one.cause != "starved-of-cores")

    assert (first.class_, first.cause) == ("communication", "process-groups-made")
    assert first.sentence.startswith("The training makes 1 process group in every step (<string>:")


def test_both_ends_of_a_pipeline_s_messages_pair(tmp_path: Path) -> None:
    """Two stages, blocking and not: the k-th that one sends is the k-th that the other receives, in bytes and in time."""
    run_ranks(
        2,
        f"""
import torch.distributed as dist
from torch.distributed import isend as early
import tlkit
RANK = int(os.environ["HOROVOD_RANK"])
dist.init_process_group("gloo", rank=RANK, world_size=2)
tlkit.instrument()
other = 1 - RANK
for step in range({STEPS}):
    if RANK == 0:
        dist.send(torch.full((10 + step,), float(step)), 1)
        gradient = torch.empty(20)
        assert dist.recv(gradient, tag=1) == 1
    else:
        x = torch.empty(10 + step)
        dist.recv(x, 0)
        assert x.tolist() == [step] * (10 + step)
        dist.send(torch.ones(20), 0, tag=1)
    back = torch.zeros(30)
    sent = early if step % 2 else dist.isend
    batch = [dist.P2POp(sent, torch.full((30,), 1.0 + RANK), other), dist.P2POp(dist.irecv, back, other)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert back.tolist() == [1.0 + other] * 30
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    trace = opened(tmp_path / "t.json")
    messages = trace.messages
    pair = ["sender", "receiver", "tag", "seq", "process_set"]
    sent = messages[messages["direction"] == "send"].rename(columns={"rank": "sender", "peer": "receiver"})
    received = messages[messages["direction"] == "recv"].rename(columns={"peer": "sender", "rank": "receiver"})
    both = sent.merge(received, on=pair, suffixes=("_sent", "_received"))

    assert not len(trace.collectives)
    assert len(both) == len(sent) == len(received) == 4 * STEPS
    assert (both["nbytes_sent"] == both["nbytes_received"]).all()
    forward = both[(both["sender"] == 0) & (both["nbytes_sent"] < 80)].sort_values("seq")
    assert forward["nbytes_sent"].tolist() == [4 * (10 + step) for step in range(STEPS)]
    # Nothing arrives before it was sent, within what is known of the clocks.
    arrived = both["start_ns_received"] + both["dur_ns_received"] + trace.meta.clock.uncertainty_ns
    assert (arrived >= both["submitted_ns_sent"]).all()
    waits = [wait for wait in waits_of(trace, 1) if wait["name"] in {"SEND", "RECV"}]
    assert {(wait["name"], wait["peer"]) for wait in waits} == {("SEND", 0), ("RECV", 0)}


def test_messages_are_sent_as_before_once_the_recording_has_ended(tmp_path: Path) -> None:
    """Also by an operation that was put together meanwhile."""
    run_ranks(
        2,
        """
import torch.distributed as dist
import tlkit
RANK = int(os.environ["HOROVOD_RANK"])
dist.init_process_group("gloo", rank=RANK, world_size=2)
value = torch.zeros(3)
with tlkit.instrument(os.environ["FIRST"]):
    batch = [dist.P2POp(dist.isend, torch.full((3,), 1.0 + RANK), 1 - RANK), dist.P2POp(dist.irecv, value, 1 - RANK)]
for work in dist.batch_isend_irecv(batch):
    work.wait()
assert value.tolist() == [2.0 - RANK] * 3
with tlkit.instrument(os.environ["SECOND"]):
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    torch.nn.Linear(2, 2)(torch.ones(2))
""",
        {"FIRST": f"{tmp_path}/a.json", "SECOND": f"{tmp_path}/b.json"},
    )
    assert len(opened(tmp_path / "b.json").messages) == 4


def test_work_of_the_loop_is_metered(tmp_path: Path) -> None:
    """A loop that computes outside of all phases on one rank: its own time shows there, and the process's everywhere."""
    run_ranks(
        2,
        """
hvd.init()
net = torch.nn.Linear(8, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
for step in range(10):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if hvd.rank() == 1:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
hvd.shutdown()
""",
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    trace = opened(tmp_path / "t.json")
    counters = trace.counters.groupby(["name", "rank"], observed=True)["value"]
    typical, count = counters.median(), counters.size()

    assert count["other cpu_ns", 0] == count["step process_cpu_ns", 0] == len(trace.steps[trace.steps["rank"] == 0])
    assert typical["other cpu_ns", 1] >= 20e6
    assert typical["other cpu_ns", 1] - typical["other cpu_ns", 0] >= 10e6
    assert typical["step process_cpu_ns", 1] >= typical["other cpu_ns", 1]
