"""What is asked of NCCL, with a double of torch's process group: types that it has, no lists where one call does, no empty ones."""

from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from tlkit.runtime.core.binding import Place
from tlkit.runtime.core.operations import ReduceOp
from tlkit.runtime.torch.data_plane.transports.nccl import NcclTransport, explain


class Work:
    def wait(self) -> None:
        pass


class ProcessGroupNCCL:
    """Two ranks, of which the other sends what this one sends, and 100 more where it has to."""

    class Options:
        _timeout: Any = None

    TYPES = (
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.bool,
    )

    def __init__(self, *_: Any) -> None:
        self.calls: list[str] = []
        self.aborted = False

    def _called(self, name: str, *tensors: torch.Tensor) -> Work:
        assert {tensor.dtype for tensor in tensors} <= set(self.TYPES)
        self.calls.append(name)
        return Work()

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Work:
        assert options.reduceOp == dist.ReduceOp.SUM
        tensors[0].mul_(2)
        return self._called("allreduce", *tensors)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Work:
        assert options.rootTensor == 0
        return self._called("broadcast", *tensors)

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor) -> Work:
        output.copy_(torch.cat([source, source]))
        return self._called("_allgather_base", output, source)

    def allgather(self, outputs: list[list[torch.Tensor]], sources: list[torch.Tensor]) -> Work:
        for output in outputs[0]:
            output.copy_(sources[0].repeat(2)[: output.numel()])
        return self._called("allgather", *outputs[0], *sources)

    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, received: list[int], sent: list[int], _: Any
    ) -> Work:
        assert (sum(received), sum(sent)) == (output.numel(), source.numel())
        output.copy_(source)
        return self._called("alltoall_base", output, source)

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, options: Any) -> Work:
        assert options.reduceOp == dist.ReduceOp.SUM
        output.copy_(2 * source[: output.numel()])
        return self._called("_reduce_scatter_base", output, source)

    def reduce_scatter(self, outputs: list[torch.Tensor], sources: list[list[torch.Tensor]], options: Any) -> Work:
        assert options.reduceOp == dist.ReduceOp.SUM
        outputs[0].copy_(2 * sources[0][0])
        return self._called("reduce_scatter", *outputs, *sources[0])

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> NcclTransport:
    """Of a rank of two."""
    monkeypatch.setitem(vars(dist), "ProcessGroupNCCL", ProcessGroupNCCL)
    return NcclTransport(Place(store=None, ranks=(0, 1), rank=0, number=0, timeout_s=1.0))


def calls(transport: NcclTransport) -> list[str]:
    group: ProcessGroupNCCL = transport._group
    return group.calls


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.bool, torch.bfloat16], ids=str)
def test_every_type_is_moved_as_one_that_nccl_has(transport: NcclTransport, dtype: torch.dtype) -> None:
    """int16 goes as bytes, with its counts."""
    source = torch.tensor([1, -2, 300, 0]).to(dtype)
    gathered, exchanged = torch.zeros(8, dtype=dtype), torch.zeros(4, dtype=dtype)
    transport.allgather(torch.split(gathered, [4, 4]), source)
    transport.alltoall(exchanged, source, [1, 3], [3, 1])
    transport.broadcast(source, 1)

    assert torch.equal(gathered, torch.cat([source, source]))
    assert torch.equal(exchanged, source)
    assert calls(transport) == ["_allgather_base", "alltoall_base", "broadcast"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([3, 3], "_allgather_base"), ([3, 2], "allgather"), ([3, 0], "allgather"), ([0, 0], "")],
    ids=str,
)
def test_equal_sizes_are_gathered_without_a_copy(transport: NcclTransport, counts: list[int], expected: str) -> None:
    """Unequal ones, empty ones among them, go as torch can; nothing is nothing."""
    memory = torch.zeros(sum(counts))
    transport.allgather(torch.split(memory, counts), torch.arange(1.0, counts[0] + 1))

    assert calls(transport) == ([expected] if expected else [])
    assert memory.tolist() == [*range(1, counts[0] + 1), *range(1, counts[1] + 1)]


@pytest.mark.parametrize(
    ("counts", "expected"), [([2, 2], "_reduce_scatter_base"), ([2, 1], "reduce_scatter"), ([0, 0], "")], ids=str
)
def test_equal_pieces_are_scattered_without_a_copy(transport: NcclTransport, counts: list[int], expected: str) -> None:
    """As above."""
    output = torch.zeros(counts[0])
    transport.reducescatter(output, torch.arange(float(sum(counts))), counts)

    assert calls(transport) == ([expected] if expected else [])
    assert output.tolist() == [2.0 * place for place in range(counts[0])]


def test_an_aborted_communicator_is_used_no_more(transport: NcclTransport) -> None:
    """And aborting it again, or closing it, is nothing."""
    buffer = torch.ones(2)
    transport.allreduce(buffer, ReduceOp.SUM)
    group = cast("ProcessGroupNCCL", transport._group)
    transport.abort()
    transport.abort()
    transport.close()

    assert buffer.tolist() == [2, 2]
    assert group.aborted


OF_TORCH = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"""


def test_two_ranks_on_one_gpu_are_told_what_to_do(transport: NcclTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line; torch's first one names a line of its own."""

    def fail(*_: Any) -> None:
        raise RuntimeError(OF_TORCH)

    monkeypatch.setattr(transport._group, "allreduce", fail)
    with pytest.raises(RuntimeError) as raised:
        transport.allreduce(torch.ones(1), ReduceOp.SUM)
    message = str(raised.value)

    assert message.startswith(
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000: NCCL needs a GPU for each rank"
    )
    assert "torch.cuda.set_device(hvd.local_rank())" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("one line", "one line"),
        ("first\nLast error:\n\n  socket closed \n", "socket closed"),
        ("first\nLast error:", "first"),
        ("", "NCCL failed"),
    ],
)
def test_what_nccl_said_last_is_what_it_says(said: str, expected: str) -> None:
    """Where it said anything."""
    assert explain(said) == expected
