"""Gradients belong to the program: what it has kept stays, and each is the parameter's own, whatever order they come in."""

import pytest

from .ranks import run_ranks

_TRAINING = """
hvd.init()
rank = hvd.rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters())

def step(scale):
    optimizer.zero_grad()
    net(torch.full((1, 4), float(scale))).sum().backward()
    optimizer.step()
    return [p.grad for p in net.parameters()]
"""


@pytest.mark.parametrize("threshold", ["0", "134217728"])
def test_what_is_kept_of_a_gradient_stays(threshold: str) -> None:
    """The program holds it over zero_grad() and the next steps: one gradient or all, itself or something that shows it."""
    results = run_ranks(
        2,
        _TRAINING
        + """
ways = {
    "gradient": lambda g: g,
    "view": lambda g: g.view(-1)[:1],
    "detached": lambda g: g.detach(),
    "array": lambda g: g.numpy(),
}
wrong = []
for way, take in ways.items():
    for places in (range(6), [2]):
        for _ in range(5):
            step(1)
        kept = [take(gradient) for place, gradient in enumerate(step(2 + rank)) if place in places]
        copies = [torch.as_tensor(each).clone() for each in kept]
        for scale in (5, 6, 7):
            last = step(scale)
        if not all(torch.equal(torch.as_tensor(each), copy) for each, copy in zip(kept, copies)):
            wrong.append(way)
        if torch.equal(last[0], step(2 + rank)[0]):
            wrong.append(way + ": the steps do not differ")

# A graph keeps it where Python does not see it.
factor = torch.ones(3, 4, requires_grad=True)
gradient = step(2)[0]
expected = gradient.tolist()
total = (factor * gradient).sum()
del gradient
step(5)
step(6)
total.backward()
if factor.grad.tolist() != expected:
    wrong.append("graph")
answer(wrong)
""",
        {"HOROVOD_FUSION_THRESHOLD": threshold},
    )

    assert [result.answer for result in results] == [[], []]


def test_gradients_on_a_device_are_not_there_twice() -> None:
    """They are pieces of the buckets as soon as backward is done; here the host's memory stands for the device's."""
    results = run_ranks(
        2,
        """
from tlkit.runtime.torch import buckets, gradient_memory
buckets.ADOPTS_ON_CPU = True
layouts = []
plain = gradient_memory.Layout.__init__
def remember(self, *args):
    plain(self, *args)
    layouts.append(self)
gradient_memory.Layout.__init__ = remember
"""
        + _TRAINING
        + """
import warnings
(layout,) = layouts
inside, warned = [], []
for scale in range(1, 9):
    optimizer.zero_grad()
    net(torch.full((1, 4), float(scale + rank))).sum().backward()
    starts = {slot.data_ptr() for slot in layout.slots}
    inside.append({p.grad.data_ptr() for p in net.parameters()} == starts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    warned += [str(each.message) for each in caught]
own = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
own.load_state_dict(net.state_dict())
for r in range(2):
    (own(torch.full((1, 4), float(8 + r))).sum() / 2).backward()
close = [torch.allclose(p.grad, q.grad) for p, q in zip(net.parameters(), own.parameters())]
answer([all(inside), warned, all(close)])
""",
    )

    assert [result.answer for result in results] == [[True, [], True]] * 2


def test_memory_of_gradients_is_used_again() -> None:
    """A program that keeps nothing always gets the same memory; one that keeps a step's gradients gets two in turn."""
    results = run_ranks(
        2,
        _TRAINING
        + """
def places(steps, keep):
    seen, kept = [], None
    for scale in range(steps):
        gradients = step(scale)
        seen.append(gradients[0].data_ptr())
        if keep:
            kept = gradients
        del gradients
    return len(set(seen))

# The last one has what was kept before to let go of.
answer([places(8, False), places(8, True), places(8, False) <= 2])
""",
    )

    assert [result.answer for result in results] == [[1, 2, True]] * 2


def test_gradients_added_in_place_stay_in_place() -> None:
    """With `set_to_none=False` a gradient is one tensor for good, kept or not, as torch has it."""
    results = run_ranks(
        2,
        _TRAINING
        + """
kept = step(1)
views = [gradient.view(-1) for gradient in kept]
for scale in range(2, 7):
    optimizer.zero_grad(set_to_none=False)
    net(torch.full((1, 4), float(scale))).sum().backward()
    optimizer.step()
same = [parameter.grad is gradient for parameter, gradient in zip(net.parameters(), kept)]
fresh = step(6)
answer([all(same), [torch.equal(view, gradient.view(-1)) for view, gradient in zip(views, fresh)]])
""",
    )

    assert [result.answer for result in results] == [[True, [True] * 6]] * 2


@pytest.mark.parametrize(
    "cleared", ["to none", "to zero", "with zeros of its own", "now and then with zeros of its own"]
)
def test_each_gradient_is_the_parameters_own_in_any_order(cleared: str) -> None:
    """Backward takes another order after the first steps, in every second step, or leaves a parameter out."""
    results = run_ranks(
        2,
        f"""
cleared = {cleared!r}
hvd.init()
rank, size = hvd.rank(), hvd.size()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Parameter(torch.full((3,), 0.5 + k)) for k in range(3))

    def forward(self, x, step):
        first, second, third = (self.a, self.b, self.c) if step % 2 or step < 6 else (self.c, self.b, self.a)
        y = (x * first).exp() * second
        return (y * third if step != 9 else y).sum()

def gradients_alone(step):
    total = None
    for other in range(size):
        twin = Net()
        twin(torch.full((3,), 0.1 * (other + 1)), step).backward()
        found = [torch.zeros(3) if p.grad is None else p.grad / size for p in twin.parameters()]
        total = found if total is None else [one + two for one, two in zip(total, found)]
    return total

net = Net()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters())
wrong = []
for step in range(14):
    optimizer.zero_grad(set_to_none=cleared != "to zero")
    if cleared == "with zeros of its own" or (cleared.startswith("now") and step >= 6 and step % 4 == 0):
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
    net(torch.full((3,), 0.1 * (rank + 1)), step).backward()
    optimizer.step()
    for parameter, expected in zip(net.parameters(), gradients_alone(step)):
        if not torch.allclose(parameter.grad, expected):
            wrong.append(step)
answer(wrong)
""",
    )

    assert [result.answer for result in results] == [[], []]
