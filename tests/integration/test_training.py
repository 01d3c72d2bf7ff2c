"""Distributed training gives what training on the whole batch in one process gives."""

import pytest

from .ranks import run_ranks

_TRAINING = """
def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
    ).double()

def batches(steps):
    torch.manual_seed(11)
    return [(torch.randn(24, 6, dtype=torch.float64), torch.randn(24, 2, dtype=torch.float64)) for _ in range(steps)]

def make(net, kind):
    if kind == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    return torch.optim.AdamW(net.parameters(), lr=0.01)

def alone(kind, steps):
    net = model(); optimizer = make(net, kind)
    for x, y in batches(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return net

def difference(net, other):
    return max((p - q).abs().max().item() for p, q in zip(net.parameters(), other.parameters()))
"""


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("options", ["", "groups=2", "gradient_predivide_factor=2.0"])
def test_training_equals_one_process_on_the_whole_batch(size: int, options: str) -> None:
    """After ten steps no parameter differs by more than 1e-12 in double precision."""
    results = run_ranks(
        size,
        _TRAINING
        + f"""
hvd.init()
rank, size = hvd.rank(), hvd.size()
worst = 0.0
for kind in ("sgd", "adamw"):
    net = model()
    if rank:
        for p in net.parameters():
            p.data.fill_(rank)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = make(net, kind)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), {options})
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    share = 24 // size
    for x, y in batches(10):
        optimizer.zero_grad()
        mine = slice(rank * share, (rank + 1) * share)
        torch.nn.functional.mse_loss(net(x[mine]), y[mine]).backward()
        optimizer.step()
    worst = max(worst, difference(net, alone(kind, 10)))
answer(worst)
""",
    )

    for result in results:
        assert isinstance(result.answer, float)
        assert result.answer <= 1e-12


def test_accumulation_unused_parameters_closures_and_the_amp_recipe() -> None:
    """The ways in which scripts use the optimizer beyond the plain loop."""
    results = run_ranks(
        2,
        """
        hvd.init()
        rank = hvd.rank()
        checks = {}

        def fresh(**options):
            torch.manual_seed(0)
            net = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 1, bias=False), "b": torch.nn.Linear(2, 1, bias=False)})
            net.double()
            optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
            return net, hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)

        x = torch.full((1, 2), float(rank + 1), dtype=torch.float64)

        net, optimizer = fresh(backward_passes_per_step=2)
        start = net["a"].weight.detach().clone()
        for _ in range(2):
            net["a"](x).sum().backward()
        optimizer.step()
        checks["passes are summed"] = torch.allclose(start - net["a"].weight, torch.full((1, 2), 3.0).double())

        net, optimizer = fresh()
        start = net["a"].weight.detach().clone()
        (net["a"] if rank == 0 else net["b"])(x).sum().backward()
        optimizer.step()
        checks["unused count as zeros"] = torch.allclose(start - net["a"].weight, torch.full((1, 2), 0.5).double())

        net, optimizer = fresh()
        net["a"](x).sum().backward()
        try:
            optimizer.zero_grad(set_to_none=True)
        except AssertionError as error:
            checks["zero_grad refuses"] = "before optimizer.step()" in str(error)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        checks["set_to_none"] = net["a"].weight.grad is None

        net, optimizer = fresh()
        start = net["a"].weight.detach().clone()
        def closure():
            optimizer.zero_grad()
            loss = net["a"](x).sum()
            loss.backward()
            return loss
        optimizer.step(closure)
        checks["closure"] = torch.allclose(start - net["a"].weight, torch.full((1, 2), 1.5).double())
        checks["class"] = type(optimizer).__name__ == "SGD" and isinstance(optimizer, torch.optim.SGD)

        net, optimizer = fresh()
        hooked = []
        optimizer.register_step_pre_hook(lambda *_: hooked.append(net["a"].weight.grad.tolist()))
        optimizer.register_step_post_hook(lambda *_: hooked.append("after"))
        net["a"](x).sum().backward()
        optimizer.step()
        checks["hooks run once, on reduced gradients"] = hooked == [[[1.5, 1.5]], "after"]

        table = torch.nn.Embedding(5, 2, sparse=True).double()
        torch.nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
        table(torch.tensor([rank, 4])).sum().backward()
        optimizer.step()
        checks["sparse"] = table.weight.detach().tolist() == [[-0.5] * 2, [-0.5] * 2, [0] * 2, [0] * 2, [-1] * 2]

        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        optimizer.zero_grad(); table(torch.tensor([0])).sum().backward(); optimizer.step(); scheduler.step()
        checks["scheduler"] = abs(optimizer.param_groups[0]["lr"] - 0.1) < 1e-12
        answer({name: bool(value) for name, value in checks.items()})
        """,
    )

    for result in results:
        assert isinstance(result.answer, dict)
        assert [name for name, good in result.answer.items() if not good] == []


def test_optimizer_state_travels_without_touching_parameters() -> None:
    """A rank without state gets the root's, hyper-parameters included; parameters stay what they were."""
    results = run_ranks(
        2,
        """
        hvd.init()
        weight = torch.nn.Parameter(torch.ones(3) * (hvd.rank() + 1))
        optimizer = torch.optim.Adam([weight], lr=0.1 * (hvd.rank() + 1), weight_decay=0.5)
        if hvd.rank() == 0:
            weight.grad = torch.ones(3); optimizer.step()
        before = weight.detach().clone()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        state = optimizer.state[weight]
        answer([torch.equal(before, weight), optimizer.param_groups[0]["lr"], float(state["step"]), state["exp_avg"].tolist()])
        """,
    )

    assert results[0].answer == results[1].answer
    assert isinstance(results[1].answer, list)
    assert results[1].answer[:3] == [True, 0.1, 1.0]


def test_state_of_a_new_optimizer_is_made_and_sent() -> None:
    """No rank has stepped yet: all have the root's state afterwards, gradients of zeros where there are to be some."""
    results = run_ranks(
        2,
        """
        hvd.init()
        net = torch.nn.Linear(3, 2)
        net.bias.requires_grad_(False)
        torch.nn.init.constant_(net.weight, hvd.rank() + 1.0)
        optimizer = torch.optim.SGD(
            [{"params": [net.weight]}, {"params": [net.bias]}], lr=0.1 * (hvd.rank() + 1), momentum=0.9, weight_decay=0.1
        )
        optimizer = hvd.DistributedOptimizer(optimizer)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        answer({
            "names": sorted(optimizer._parameter_names.values()),
            "lr": optimizer.param_groups[0]["lr"],
            "momentum": optimizer.state[net.weight]["momentum_buffer"].tolist(),
            "gradients": [p.grad if p.grad is None else p.grad.tolist() for p in (net.weight, net.bias)],
            "weight": net.weight[0, 0].item(),
        })
        """,
    )

    zeros = [[0.0] * 3] * 2
    for rank, result in enumerate(results):
        assert result.answer == {
            "names": ["allreduce.noname.0.0", "allreduce.noname.1.0"],
            "lr": 0.2,
            "momentum": zeros,
            "gradients": [zeros, None],
            "weight": rank + 1.0,
        }


def test_batch_normalisation_over_all_ranks_equals_the_whole_batch() -> None:
    """Values, gradients, running statistics, with uneven batches, on CPUs."""
    script = """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    rows = [3, 5]
    torch.manual_seed(3)
    whole = torch.randn(8, 4, 2, 3, dtype=torch.float64)
    mine = whole.split(rows)[rank].clone().requires_grad_()
    reference_input = whole.clone().requires_grad_()
    ours, reference = hvd.SyncBatchNorm(4).double(), torch.nn.BatchNorm2d(4).double()
    with torch.no_grad():
        for layer in (ours, reference):
            layer.weight.copy_(torch.arange(1.0, 5.0))
            layer.bias.copy_(torch.arange(4.0))
    for step in range(2):
        y, expected = ours(mine), reference(reference_input)
        assert torch.allclose(y, expected.split(rows)[rank])
        weights = torch.randn(8, 4, 2, 3, dtype=torch.float64)
        (y * weights.split(rows)[rank]).sum().backward()
        (expected * weights).sum().backward()
    assert torch.allclose(mine.grad, reference_input.grad.split(rows)[rank])
    assert torch.allclose(hvd.allreduce(ours.weight.grad, op=hvd.Sum), reference.weight.grad)
    assert torch.allclose(ours.running_mean, reference.running_mean)
    assert torch.allclose(ours.running_var, reference.running_var)
    assert int(ours.num_batches_tracked) == 2
    ours.eval(); reference.eval()
    assert torch.allclose(ours(mine), reference(mine))
    hvd.shutdown()
    answer("fine")
    """
    assert [result.answer for result in run_ranks(2, script)] == ["fine"] * 2


def test_the_other_ways_to_send_gradients_give_the_same() -> None:
    """Compression, sparse embeddings, Adasum of equal steps, layouts, buckets that change, gradients that stay."""
    script = (
        _TRAINING
        + """
hvd.init()
rank, size = hvd.rank(), hvd.size()

def run(steps=6, zero=True, make=lambda: model().float(), **options):
    net = make()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(), **options)
    for step in range(steps):
        torch.manual_seed(step)  # the same on all ranks: the average is what one rank would do alone
        optimizer.zero_grad(set_to_none=zero)
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])

def alone(steps=6, make=lambda: model().float()):
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])

expected = alone()
assert torch.allclose(run(), expected, atol=1e-6)
assert torch.allclose(run(zero=False), expected, atol=1e-6)
assert torch.allclose(run(compression=hvd.Compression.fp16), expected, atol=2e-2)
assert torch.allclose(run(compression=hvd.Compression.bf16), expected, atol=5e-2)
assert torch.allclose(run(op=hvd.Adasum), expected, atol=1e-6)
assert torch.allclose(run(op=hvd.Max), expected, atol=1e-6)
assert torch.allclose(run(gradient_predivide_factor=2.0), expected, atol=1e-6)

class Strided(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.a = torch.nn.Parameter(torch.randn(8, 6).t())
        self.b = torch.nn.Parameter(torch.randn(8))
        self.unused = torch.nn.Parameter(torch.ones(3))
    def forward(self, x):
        return x @ self.a + self.b

assert torch.allclose(run(make=Strided), alone(make=Strided), atol=1e-6)

# What backward reaches changes from step to step, on each rank in another way.
net = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(4)])
hvd.broadcast_parameters(net.state_dict(), 0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters())
for step in range(30):
    optimizer.zero_grad()
    x = torch.ones(2, 3)
    order = [0, 1, 2, 3] if step < 8 else [(step + k + rank) % 4 for k in range(3)]
    for place in order:
        x = net[place](x).tanh()
    x.square().mean().backward()
    optimizer.step()
weights = hvd.allgather_object([p.tolist() for p in net.parameters()])
assert weights[0] == weights[1]

# Embeddings with sparse gradients, both ways.
for dense in (False, True):
    torch.manual_seed(1)
    table = torch.nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0), table.named_parameters(), sparse_as_dense=dense)
    before = table.weight.detach().clone()
    optimizer.zero_grad()
    table(torch.tensor([rank, 5])).sum().backward()
    optimizer.step()
    moved = before - table.weight.detach()
    assert torch.allclose(moved[:, 0], torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0, 1.0])), (dense, moved)

# A second backward before the step is an error, also once only the last gradient of a bucket is watched.
net = model().float()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters())
for step in range(8):
    optimizer.zero_grad()
    net(torch.ones(2, 6)).sum().backward()
    optimizer.step()
optimizer.zero_grad()
net(torch.ones(2, 6)).sum().backward()
try:
    net(torch.ones(2, 6)).sum().backward()
except AssertionError as error:
    assert "more than backward_passes_per_step times" in str(error)
else:
    raise AssertionError("nothing was raised")
hvd.barrier()  # the other rank may have to send its own first
hvd.shutdown()
answer("fine")
"""
    )
    assert [result.answer for result in run_ranks(2, script)] == ["fine"] * 2
