"""The control plane on a network, a clock and faults that seeds decide (benchmarks/protocol.py tries many more of them)."""

import pytest

from tests.simulation.world import run_seed

SEEDS = 200
_TOGETHER = 20


@pytest.mark.parametrize("first", range(0, SEEDS, _TOGETHER))
def test_whatever_happens_ranks_agree_and_every_operation_ends(first: int) -> None:
    """The same batches in the same order, nothing that not all asked for, a value or a cause for everybody, cached or not."""
    for seed in range(first, first + _TOGETHER):
        run_seed(seed)


@pytest.mark.parametrize("seed", [2247, 8686, 16519, 23245])
def test_a_rank_that_is_stopped_for_good_keeps_no_other_from_leaving(seed: int) -> None:
    """Jobs in which a rank is stopped after all work is done, while another has not asked for the end itself."""
    run_seed(seed)
