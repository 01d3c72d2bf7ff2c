"""Bandwidths as nccl-tests defines them."""

import pytest

from tests.traces import make_trace, uniform
from tlkit.collector import analyze
from tlkit.collector.model.bandwidth import bus_factor


@pytest.mark.parametrize(
    ("kind", "size", "factor"),
    [
        ("allreduce", 2, 1.0),
        ("allreduce", 8, 1.75),
        ("allgather", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("allreduce", 1, 0.0),
    ],
)
def test_the_bus_factor_is_the_share_that_crosses_a_link(kind: str, size: int, factor: float) -> None:
    """nccl-tests, doc/PERFORMANCE.md."""
    assert bus_factor(kind, size) == factor


def test_bandwidth_counts_the_transfer_and_not_the_wait() -> None:
    """10 MB in 5 ms are 2 GB/s, however long one rank waited for the other before."""
    steps = uniform(2, 5, {"forward": 10, "wait:collective": 5})
    steps[0] = [[("forward", 2), ("wait:collective", 13)]] * 5
    (row,) = analyze(make_trace(steps, nbytes=10_000_000), warm_up=0).collectives.to_dict("records")

    assert row["algbw_gbps"] == pytest.approx(2.0)
    assert row["busbw_gbps"] == pytest.approx(2.0)
    assert row["count"] == 5
