"""Elastic state, sampler and roster, without ranks."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tlkit.runtime.core.elastic import HostUpdateResult, ObjectState, notification_manager, run_fn
from tlkit.runtime.core.errors import HorovodInternalError, HostsUpdatedInterrupt
from tlkit.runtime.launch.roster import Roster
from tlkit.runtime.torch.elastic import ElasticSampler, TorchState


def sampler(length: int, rank: int, size: int, *, shuffle: bool = True) -> ElasticSampler:
    """The sampler of one rank."""
    made = ElasticSampler.__new__(ElasticSampler)
    with (
        mock.patch("tlkit.runtime.torch.elastic.sampler.rank", return_value=rank),
        mock.patch("tlkit.runtime.torch.elastic.sampler.size", return_value=size),
    ):
        made.__init__(range(length), shuffle=shuffle)  # type: ignore[misc]
    return made


def resized(made: ElasticSampler, rank: int, size: int) -> ElasticSampler:
    """The sampler after the ranks have met anew."""
    with (
        mock.patch("tlkit.runtime.torch.elastic.sampler.rank", return_value=rank),
        mock.patch("tlkit.runtime.torch.elastic.sampler.size", return_value=size),
    ):
        made.reset()
    return made


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(0, 6), st.booleans())
def test_every_sample_of_an_epoch_is_processed_once_whatever_ranks_come(
    length: int, size: int, later: int, batch: int, batches: int, shuffle: bool
) -> None:
    """Some batches on `size` ranks, the rest on `later` ranks: nothing is left out, and only padding comes twice."""
    before = [sampler(length, rank, size, shuffle=shuffle) for rank in range(size)]
    assert len({len(list(each)) for each in before}) == 1
    batches = min(batches, len(before[0]) // batch)
    seen: list[int] = []
    for each in before:
        indices = list(each)
        seen += indices[: batches * batch]
        for number in range(batches):
            each.record_batch(number, batch)
    state = before[0].state_dict()
    after = []
    for rank in range(later):
        each = sampler(length, rank, later, shuffle=shuffle)
        each.epoch, each.processed_num = state["epoch"], state["processed_num"]
        after.append(resized(each, rank, later))
    rest = [index for each in after for index in each]

    assert set(seen) | set(rest) == set(range(length))
    assert len(rest) == len(after[0]) * later
    assert len(seen) + len(rest) < length + later + size


def test_state_goes_back_to_the_last_commit() -> None:
    """Objects, models and optimizers; assigned attributes, too."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    state = TorchState(model=model, optimizer=optimizer, step=1, seen=[1])
    weights = model.weight.detach().clone()
    state.step = 2
    state.seen.append(2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state.restore()

    assert (state.step, state.seen) == (1, [1])
    assert torch.equal(model.weight, weights)
    state.step = 3
    state.commit()
    state.step = 4
    state.restore()
    assert state.step == 3
    other = torch.nn.Linear(2, 1)
    state.model = other
    assert state.model is other


def test_a_function_is_run_until_it_returns() -> None:
    """A lost rank means restore, changed hosts do not; both mean that the ranks meet anew and the callbacks are called."""
    told: list[str] = []
    state = ObjectState(lambda value, **_: value, lambda: 0, step=0)
    state.register_reset_callbacks([lambda: told.append("callback")])
    outcomes = iter([HorovodInternalError("gone"), HostsUpdatedInterrupt(), None])

    def train(given: ObjectState) -> int:
        step: int = given.step
        given.step += 1
        outcome = next(outcomes)
        if isinstance(outcome, HostsUpdatedInterrupt):
            given.save()
        if outcome is not None:
            raise outcome
        return step

    assert run_fn(train, lambda: told.append("reset"))(state) == 1
    assert told == ["reset", "callback", "reset", "callback"]


def test_whoever_knows_of_new_hosts_may_say_so() -> None:
    """The next commit is interrupted, once, and listeners hear of it."""
    state = ObjectState(lambda value, **_: value, lambda: 0, step=0)
    listener = mock.Mock()
    notification_manager.register_listener(listener)
    state.commit()
    state.on_hosts_updated(1.0, HostUpdateResult.ADDED)
    state.step = 3
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    notification_manager.remove_listener(listener)

    listener.on_hosts_updated.assert_called_once()
    state.step = 4
    state.restore()
    assert state.step == 3  # it was saved before
    state.commit()


def test_survivors_keep_the_lower_ranks() -> None:
    """Newcomers come after them; hosts keep their order; who is on a host that is gone is not wanted."""
    roster = Roster(most=4)
    roster.discover({"a": 2, "b": 1})
    for number, host in enumerate(roster.vacancies(0.0)):
        roster.add(number, host)
    assert roster.convene(1) is None
    for number in (2, 0, 1):
        roster.check_in(number)
    ordered = roster.convene(1)
    assert ordered is not None
    assert [(worker.number, worker.host, worker.rank) for worker in ordered] == [(0, "a", 0), (1, "a", 1), (2, "b", 2)]
    roster.remove(0)
    roster.block("a", 50.0)
    assert roster.vacancies(10.0) == []
    assert roster.vacancies(60.0) == ["a"]
    roster.discover({"b": 2, "a": 2})
    roster.add(3, "b")
    assert not roster.has_changed
    roster.check_in(3)
    assert roster.has_changed
    for number in (1, 2):
        roster.check_in(number)
    ordered = roster.convene(1)
    assert ordered is not None
    assert [(worker.number, worker.rank) for worker in ordered] == [(1, 0), (2, 1), (3, 2)]
    roster.discover({"b": 1})
    assert [worker.number for worker in roster.unwanted()] == [1, 3]
    for number in (1, 2, 3):
        roster.check_in(number)
    ordered = roster.convene(1)
    assert ordered is not None
    assert [worker.number for worker in ordered] == [2]
    assert roster.convene(2) is None


def test_too_few_workers_do_not_meet() -> None:
    """They wait for others."""
    roster = Roster()
    roster.discover({"a": 1})
    roster.add(0, "a")
    roster.check_in(0)

    assert roster.convene(2) is None


def test_newcomers_alone_do_not_meet_once_others_have_trained() -> None:
    """Nobody among them knows how far training has come."""
    roster = Roster()
    roster.discover({"a": 1})
    roster.add(0, "a")
    roster.check_in(0)
    assert roster.convene(1) is not None
    roster.discover({"b": 1})
    roster.add(1, "b")
    roster.check_in(0)
    roster.check_in(1)

    assert [worker.number for worker in roster.unwanted()] == [0]
    assert roster.convene(1) is None
    assert roster.has_state
    roster.remove(0)
    assert not roster.has_state


def test_a_host_that_is_left_has_no_slots_until_its_time_is_over() -> None:
    """Those who are there leave; others take no notice."""
    roster = Roster()
    roster.discover({"a": 2, "b": 2})
    for number, host in enumerate(roster.vacancies(0.0)):
        roster.add(number, host)
        roster.check_in(number)
    assert roster.convene(4) is not None
    assert roster.workers_elsewhere("b") == 2
    roster.remove(3)
    roster.leave("b", 50.0)
    roster.wait_for_hosts(10.0)

    assert [worker.number for worker in roster.unwanted()] == [2]
    assert roster.workers_elsewhere("a") == 0
    assert roster.vacancies(10.0) == []
    roster.wait_for_hosts(60.0)
    assert roster.unwanted() == []
    assert roster.vacancies(60.0) == ["b"]


@pytest.mark.parametrize(
    "name", ["horovod.torch.elastic.sampler", "horovod.torch.elastic.state", "horovod.common.elastic"]
)
def test_scripts_find_the_modules_under_horovods_names(name: str) -> None:
    """They are the same modules."""
    import importlib

    module = importlib.import_module(name)
    assert hasattr(module, "ElasticSampler") or hasattr(module, "ObjectState")
