"""Names that Horovod gives to tensors, and who asked for them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.formats.horovod_names import caller_of, parameters_of
from tlkit.timeline.formats.horovod_tables import CALLER_NAMES, common_callers


@pytest.mark.parametrize(
    ("name", "kind", "caller"),
    [
        ("allreduce.layers.0.linear1.weight", "allreduce", "gradient"),
        ("allreduce.allreduce.noname.0.3", "allreduce", "gradient"),
        ("DistributedOptimizer_Allreduce/cond_14/HorovodAllreduce_grads_0", "allreduce", "gradient"),
        ("allreduce.noname.119", "allreduce", "user"),
        ("grouped_allreduce.noname.102_1of5", "allreduce", "user"),
        ("allreduce.avg_loss", "allreduce", "user"),
        ("allreduce.val/top1", "allreduce", "user"),
        ("broadcast.blocks.0.b1.running_mean", "broadcast", "parameters"),
        ("broadcast.momentum_buffer.12", "broadcast", "parameters"),
        ("broadcast.dict.sz", "broadcast", "object"),
        ("allgather.object.t", "allgather", "object"),
        ("allreduce.sync_batch_norm.sum_dy", "allreduce", "norm"),
        ("barrier.noname.1", "barrier", "barrier"),
        ("allreduce.x", "allreduce", ""),
    ],
)
def test_a_name_tells_who_asked(name: str, kind: str, caller: str) -> None:
    """As far as Horovod's bindings make it."""
    assert caller_of(name, kind) == caller


def test_what_is_broadcast_and_reduced_under_one_name_is_a_parameter() -> None:
    """Whatever it is called; calls without names are numbered alike by accident."""
    known = parameters_of(["broadcast.a.0", "allreduce.a.0", "allreduce.b", "broadcast.noname.1", "allreduce.noname.1"])

    assert known == {"a.0"}
    assert caller_of("allreduce.a.0", "allreduce", known) == "gradient"
    assert caller_of("broadcast.a.0", "broadcast", known) == "parameters"


def test_a_batch_has_what_its_known_tensors_have_in_common() -> None:
    """Those that nobody knows do not count."""
    batches = [["gradient", "", "gradient"], ["gradient", "user"], ["", ""], ["user"]]
    callers = np.array([CALLER_NAMES.index(caller) for batch in batches for caller in batch], np.int8)
    seq = np.repeat([3, 4, 7, 8], [len(batch) for batch in batches])

    assert [CALLER_NAMES[caller] for caller in common_callers(callers, seq)] == ["gradient", "mixed", "", "user"]


def test_real_timelines_of_horovod(real_traces: Callable[[str], list[Path]]) -> None:
    """Gradients of a training are gradients, parameters parameters, whatever the model's names look like."""
    patterns = ("cnn_np2.json*", "bn_tiny_nofusion_np2*", "public_tf_mpi_cycles_2019*")
    paths = [path for pattern in patterns for path in real_traces(f"horovod/{pattern}")]
    assert len(paths) >= 2
    for path in paths:
        table = open_trace(path).collectives
        assert set(table.loc[table["kind"] == "allreduce", "caller"]) == {"gradient"}
        assert set(table.loc[table["kind"] == "broadcast", "caller"]) <= {"parameters", "object"}
        assert set(table["blocking"]) == {-1}
