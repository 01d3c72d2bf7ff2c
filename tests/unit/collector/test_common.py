"""What all ranks have in common is neither a rank's own nor lost in the noise of shared cores."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tlkit.collector.model.common import common_to_all


@given(arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(0, 30)), elements=st.integers(0, 10**9)))
def test_it_lies_between_the_least_of_a_step_and_what_each_rank_has(part_ns: np.ndarray) -> None:
    """Whatever the ranks do."""
    common = common_to_all(part_ns)
    assert (common <= part_ns).all()
    assert (common >= part_ns.min(axis=0)).all()


def test_what_one_rank_has_beyond_the_others_is_not_common() -> None:
    """Nor what ranks have in turn."""
    straggler = np.array([[10] * 20, [100] * 20])
    assert (common_to_all(straggler) == 10).all()
    in_turn = np.array([[0, 60] * 10, [60, 0] * 10])
    assert not common_to_all(in_turn).any()


def test_ranks_that_get_their_cores_at_different_times_do_the_same() -> None:
    """Four ranks with the same code on two cores: who has the least in a step has a third less than usual."""
    chance = np.random.default_rng(5)
    part_ns = 90e6 * chance.choice([0.65, 1.0, 1.05, 1.1], (4, 200), p=[0.2, 0.3, 0.3, 0.2])
    assert part_ns.min(axis=0).mean() < 0.85 * part_ns.mean()
    assert common_to_all(part_ns).mean() > 0.9 * part_ns.mean()
