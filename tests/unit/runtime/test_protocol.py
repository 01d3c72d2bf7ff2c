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
