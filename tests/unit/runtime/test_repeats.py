"""What a step computes again although nothing has changed, and what only looks like that."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tlkit.runtime.instrument.costly_settings import SettingsWatch
from tlkit.runtime.instrument.model_habits import ModelHabits
from tlkit.runtime.instrument.repeats import Repeats

_CALL = nn.Module.__call__


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> Repeats:
    """Sees all calls of modules and all passes of backward of a test, which is one step."""
    seen, backward, grad = Repeats(), torch.autograd.backward, torch.autograd.grad
    monkeypatch.setattr(nn.Module, "__call__", lambda self, *args, **kwargs: seen.call(_CALL, self, args, kwargs))
    monkeypatch.setattr(
        torch.autograd, "backward", lambda *args, **kwargs: seen.pass_through(backward, args, kwargs, is_grad=False)
    )
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *args, **kwargs: seen.pass_through(grad, args, kwargs, is_grad=True)
    )
    torch.manual_seed(1)
    return seen


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), *more, nn.Linear(256, 4))


def loss_of(scores: torch.Tensor) -> torch.Tensor:
    return scores.square().mean()


def called_once_more_for_the_accuracy(model: nn.Module, x: torch.Tensor) -> None:
    loss_of(model(x)).backward()
    with torch.no_grad():
        model(x).argmax(1)


def called_before_without_gradient(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x).argmax(1)
    loss_of(model(x)).backward()


def called_by_two_losses(model: nn.Module, x: torch.Tensor) -> None:
    (loss_of(model(x)) + model(x).abs().mean()).backward()


@pytest.mark.parametrize(
    "step", [called_once_more_for_the_accuracy, called_before_without_gradient, called_by_two_losses]
)
def test_a_model_is_called_again(repeats: Repeats, step: Callable[[nn.Module, torch.Tensor], None]) -> None:
    """Once for all of it, not for each of its layers as well."""
    model, x = network(), torch.randn(512, 256)
    step(model, x)  # whatever happens the first time only
    repeats.forget()
    step(model, x)

    assert 0 < repeats.found()["computed-again"] < 1
    assert repeats.details() == {"computed-again": "Sequential, 2 times"}


def test_a_parametrization_is_computed_whenever_it_is_read(repeats: Repeats) -> None:
    """With its part of backward, which for a matrix exponential is more than that of the layer; not if it is cached."""
    layer, x = parametrizations.orthogonal(nn.Linear(48, 48, bias=False)), torch.randn(4, 48)

    def unrolled() -> None:
        state = x
        for _ in range(10):
            state = layer(state)
        loss_of(state).backward()

    unrolled()
    repeats.forget()
    unrolled()

    assert repeats.found()["computed-again"] > 0
    assert repeats.details() == {"computed-again": "ParametrizationList, 10 times"}

    repeats.forget()
    with parametrize.cached():
        unrolled()

    assert repeats.found() == {}


class Thinned(nn.Module):
    """DropConnect: other weights are left out each time."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(weight, 0.3)


@pytest.mark.parametrize("is_norm", [True, False])
def test_a_norm_that_comes_closer_each_time(repeats: Repeats, *, is_norm: bool) -> None:
    """A spectral norm's power iteration changes the weight a little; what is drawn anew is meant to be computed again."""
    layer, x = nn.Linear(48, 48, bias=False), torch.randn(4, 48)
    if is_norm:
        parametrizations.spectral_norm(layer)
    else:
        parametrize.register_parametrization(layer, "weight", Thinned())
    state = x
    call: Callable[[torch.Tensor], torch.Tensor] = layer
    for _ in range(10):
        state = call(state)
    loss_of(state).backward()

    assert (repeats.found().get("computed-again", 0.0) > 0) == is_norm


def own_loss(features: torch.Tensor) -> torch.Tensor:
    """More to compute than the model itself."""
    return (features @ features.T).logsumexp(1).square().mean()


def test_how_much_of_backward_is_the_loss(repeats: Repeats) -> None:
    """Of a function of the script's; a loss that is a module is forward anyway."""

    class Loss(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return own_loss(features)

    model, x = nn.Linear(16, 32), torch.randn(2048, 16)
    shares = []
    for loss in (own_loss, Loss(), lambda features: features.sum()):
        for _ in range(2):  # whatever happens the first time only
            repeats.forget()
            loss(model(x)).backward()
        shares.append(repeats.loss_share())

    assert shares[0] > 0.5
    assert shares[1] < 0.3
    assert shares[2] < 0.5


def test_modules_that_learn_nothing(repeats: Repeats) -> None:
    """A decoder whose loss has no weight, with what is inside of it once; not what backward never comes to."""
    body, unused = nn.Sequential(nn.Linear(256, 256), nn.ReLU()), network()
    decoder = nn.Sequential(network(), nn.Linear(4, 4))
    x = torch.randn(64, 256)
    known = body(x)
    unused(known)
    (loss_of(known) + 0.0 * loss_of(decoder(known))).backward()
    zero = {id(one) for one in decoder.parameters()} | {id(one) for one in unused.parameters()}
    share, name = repeats.in_vain(lambda weight: id(weight) in zero)

    assert 0.1 < share < 0.9
    assert name == "Sequential"
    assert repeats.in_vain(lambda _: False) == (0.0, "")


def twice_with_dropout() -> None:
    """As SimCSE and R-Drop do: the same batch, and other elements dropped."""
    model, x = network(nn.Dropout(0.2)), torch.randn(64, 256)
    (loss_of(model(x)) - loss_of(model(x))).backward()


def with_weights_updated() -> None:
    """As extragradient and SAM do."""
    model, x = network(), torch.randn(64, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss_of(model(x)).backward()
        optimizer.step()


def with_the_input_written_to() -> None:
    model, x = network(), torch.randn(64, 256)
    for _ in range(2):
        loss_of(model(x)).backward()
        x += 1e-6


def with_other_inputs() -> None:
    model = network()
    for _ in range(3):
        loss_of(model(torch.randn(64, 256))).backward()


def shared_layers() -> None:
    """ALBERT's layers, and a recurrent cell."""
    layer, x = nn.Linear(256, 256), torch.randn(64, 256)
    for _ in range(5):
        x = layer(x)
    loss_of(x).backward()


def with_something_unknown() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, lengths: range) -> torch.Tensor:
            return x[: len(lengths)] * 2

    module, x = Masked(), torch.randn(64, 256)
    for _ in range(2):
        module(x, range(3))


def with_a_state_of_its_own() -> None:
    class Counting(nn.Module):
        count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x + self.count

    module, x = Counting(), torch.randn(64, 256)
    for _ in range(2):
        module(x)


def a_penalty_on_gradients() -> None:
    """Its first pass is differentiated by the second."""
    model, x = network(), torch.randn(64, 256, requires_grad=True)
    scores = model(x)
    (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
    (loss_of(scores) + slope.square().mean()).backward()


def a_graph_kept_for_nobody() -> None:
    model = network()
    for _ in range(3):
        loss_of(model(torch.randn(64, 256))).backward(retain_graph=True)


@pytest.mark.parametrize(
    "step",
    [
        twice_with_dropout,
        with_weights_updated,
        with_the_input_written_to,
        with_other_inputs,
        shared_layers,
        with_something_unknown,
        with_a_state_of_its_own,
        a_penalty_on_gradients,
        a_graph_kept_for_nobody,
    ],
)
def test_something_has_changed(repeats: Repeats, step: Callable[[], None]) -> None:
    """Nothing is computed again."""
    step()
    assert repeats.found() == {}
    assert repeats.details() == {}


def test_backward_goes_through_what_losses_have_in_common(repeats: Repeats) -> None:
    """A pass for each loss: all but one of them are for nothing where their sum does."""
    trunk, heads = network(), [nn.Linear(4, 1) for _ in range(4)]

    def step() -> None:
        known = trunk(torch.randn(2048, 256))
        losses = [loss_of(head(known)) for head in heads]
        for loss in losses[:-1]:
            loss.backward(retain_graph=True)
        losses[-1].backward()

    step()
    repeats.forget()
    step()

    assert repeats.found()["backward-again"] > 0
    assert repeats.details() == {"backward-again": "4 passes"}


def test_gradients_of_each_loss_by_grad(repeats: Repeats) -> None:
    """As for GradNorm and PCGrad, before the pass that counts."""
    model = network()
    weights = list(model.parameters())

    def step() -> None:
        scores = model(torch.randn(2048, 256))
        losses = [loss_of(scores), scores.abs().mean()]
        for loss in losses:
            torch.autograd.grad(loss, weights, retain_graph=True)
        torch.stack(losses).sum().backward()

    step()
    repeats.forget()
    step()

    assert repeats.found()["backward-again"] > 0
    assert repeats.details() == {"backward-again": "3 passes"}


def test_whatever_a_module_is_made_of_the_training_goes_on(repeats: Repeats) -> None:
    """Nothing is found in that step any more, and what the module raises is what the caller gets."""

    class Strange(nn.Module):
        def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
            raise LookupError

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                raise ArithmeticError
            return x

    module = Strange()

    assert module(torch.zeros(3)).tolist() == [0, 0, 0]
    with pytest.raises(ArithmeticError):
        module(torch.ones(3))
    assert repeats.found() == {}


def test_calls_are_compared_in_steps_that_are_looked_at() -> None:
    """And in no other, since a look costs time."""
    watch = SettingsWatch(ModelHabits)
    compared = []
    for step in range(10):
        compared.append(watch.repeats is not None)
        watch.step_ended(step + 1)

    assert [number for number, is_looked_at in enumerate(compared) if is_looked_at] == [0, 1, 2, 4, 8]
