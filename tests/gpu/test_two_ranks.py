"""Two ranks share one GPU, which NCCL refuses, over Gloo and MPI: results, memory and steps."""

from typing import Any

import pytest

from tests.integration.ranks import finish_ranks, has_mpi, run_mpi_ranks, start_ranks

_OPERATIONS = """
device = os.environ["TEST_DEVICE"]
if device == "cuda":
    torch.cuda.set_device(0)
even, odd = hvd.ProcessSet([0]), hvd.ProcessSet([1])
hvd.init(process_sets=[even, odd])
rank = hvd.rank()
results = [[float(rank)]]

def keep(*tensors):
    results.extend(t.double().cpu().flatten().tolist() for t in tensors)

for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64):
    x = (torch.arange(1000, device=device) % 7 + rank).to(dtype)
    keep(hvd.allreduce(x, op=hvd.Sum, name=f"sum.{dtype}"), hvd.allreduce(x, op=hvd.Max, name=f"max.{dtype}"))
    keep(hvd.allgather(x[: 300 + 200 * rank].contiguous(), name=f"gather.{dtype}"))
    keep(hvd.broadcast(x, 1, name=f"broadcast.{dtype}"), hvd.reducescatter(x, op=hvd.Sum, name=f"scatter.{dtype}"))
    keep(*hvd.alltoall(x, torch.tensor([400 + 100 * rank, 600 - 100 * rank], dtype=torch.int32), name=f"all.{dtype}"))
keep(*hvd.grouped_allreduce([torch.full((n,), float(rank + n), device=device) for n in (0, 1, 1000)], op=hvd.Sum))
for process_set, mine in ((even, 0), (odd, 1)):
    if rank == mine:
        keep(hvd.allreduce(torch.ones(5, device=device), op=hvd.Sum, process_set=process_set, name=f"set{mine}"))
# Outputs that are forgotten at once, while their kernels are queued: what takes their memory must not be overwritten.
for number in range(200):
    handle = hvd.allgather_async(torch.full((10000,), float(number), device=device), name="freed")
    gathered = hvd.synchronize(handle)
    total = gathered.sum()
    del gathered
    again = torch.zeros(20000, device=device)
    results.append([float(total), float(again.sum())])
norm = hvd.SyncBatchNorm(4).to(device)
batch = (torch.arange(32.0, device=device).reshape(8, 4) + rank).requires_grad_()
out = norm(batch)
out.square().sum().backward()
keep(out.detach(), batch.grad, norm.running_var)
if rank == 0:
    keep(hvd.allreduce(torch.ones(100, device=device) * 3, op=hvd.Sum, name="while joined"))
last = hvd.join()
results.append([float(last >= 0)])
answer(results)
"""


def answers(transport: str, device: str) -> list[Any]:
    """Of both ranks, the first rank's first."""
    settings = {"TEST_DEVICE": device, "HOROVOD_GPU_OPERATIONS": transport, "HOROVOD_CPU_OPERATIONS": transport}
    if transport == "mpi":
        return sorted(run_mpi_ranks(2, _OPERATIONS, settings, 150), key=lambda answer: answer[0])
    return [result.answer for result in finish_ranks(start_ranks(2, _OPERATIONS, settings), 150)]


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_results_are_those_of_the_cpu(transport: str, note: Any) -> None:
    """All operations, sets, normalization, a joined rank, and outputs that are let go of early."""
    if transport == "mpi" and not has_mpi():
        pytest.skip("mpi4py or mpirun is not installed")
    on_cpu, on_gpu = answers(transport, "cpu"), answers(transport, "cuda")
    compared = [
        one == pytest.approx(other, rel=1e-3, abs=1e-3)
        for mine, theirs in zip(on_cpu, on_gpu, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    ]
    note("results", transport=transport, compared=len(compared), equal=sum(compared))

    assert all(compared)


_TRAINING = """
peer = os.environ["TEST_PEER"]
torch.cuda.set_device(0)
if peer == "ddp":
    os.environ |= {"RANK": os.environ["HOROVOD_RANK"], "WORLD_SIZE": "2"}
    torch.distributed.init_process_group("gloo")
else:
    hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(16)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if peer == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=True)
else:
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
scaler = torch.amp.GradScaler("cuda")
data = torch.randn(64, 2048, device="cuda", generator=torch.Generator("cuda").manual_seed(1))

def step():
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = model(data).float().square().mean()
    scaler.scale(loss).backward()
    if peer != "ddp":
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
    else:
        scaler.step(optimizer)
    scaler.update()
    return float(loss)

losses = [step() for _ in range(5)]
torch.cuda.synchronize()
begun = time.perf_counter()
losses += [step() for _ in range(20)]
torch.cuda.synchronize()
answer([losses, (time.perf_counter() - begun) * 50, torch.cuda.max_memory_allocated() / 2**20])
"""


def test_a_training_takes_the_memory_of_ddps(note: Any) -> None:
    """Within 128 MB; the losses go the same way, and what steps take is noted."""
    outcomes = {}
    for peer in ("ddp", "hvd"):
        settings = {"TEST_PEER": peer, "HOROVOD_GPU_OPERATIONS": "gloo"}
        outcomes[peer] = finish_ranks(start_ranks(2, _TRAINING, settings), 150)[0].answer
        _, milliseconds, mebibytes = outcomes[peer]
        note("training", peer=peer, step_ms=round(milliseconds, 2), peak_mib=round(mebibytes, 1))
    (theirs, _, their_mib), (ours, _, our_mib) = outcomes["ddp"], outcomes["hvd"]

    assert ours == pytest.approx(theirs, rel=1e-3)
    assert our_mib <= their_mib + 128


def test_nccl_refuses_a_shared_gpu_in_one_line() -> None:
    """And says what to do."""
    script = """
    torch.cuda.set_device(0)
    hvd.init()
    try:
        hvd.allreduce(torch.ones(100000, device="cuda"), name="x")
        answer("")
    except Exception as error:
        answer(str(error))
    os._exit(0)
    """
    results = finish_ranks(start_ranks(2, script, {"HOROVOD_GPU_OPERATIONS": "nccl"}), 150)
    messages = [str(result.answer) for result in results]

    assert any("Duplicate GPU" in message and "set_device(hvd.local_rank())" in message for message in messages)
    assert all(len(message.splitlines()) == 1 for message in messages)
