"""In which order streams and the host touch tensors on a GPU, with doubles in place of CUDA."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tlkit.runtime.core.control.messages import Request, Response
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.operations import ReduceOp
from tlkit.runtime.core.work import Batch, Entry, Handle
from tlkit.runtime.torch.data_plane import devices
from tlkit.runtime.torch.data_plane.binding import TorchBinding
from tlkit.runtime.torch.data_plane.transports import TransportGroup

from .cuda_doubles import Cuda, Event, Stream, install


class Transport:
    """Moves nothing; knows in which stream it was asked to."""

    name = "nccl"

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def _queue(self, name: str) -> None:
        self._cuda.current.queued.append(name)

    def allreduce(self, *_: Any) -> None:
        self._queue("allreduce")

    def allgather(self, *_: Any) -> None:
        self._queue("allgather")

    def alltoall(self, *_: Any) -> None:
        self._queue("alltoall")

    def reducescatter(self, *_: Any) -> None:
        self._queue("reducescatter")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """CUDA, in whose place the doubles are; tensors are fake."""
    double = install(monkeypatch)
    monkeypatch.setattr(devices._Used, "streams", {})
    monkeypatch.setattr(devices._Used, "device", None)
    monkeypatch.setattr("tlkit.runtime.instrument.own_device.in_use", object)
    with FakeTensorMode():
        yield double


def an_entry(kind: Kind, rows: int = 4, *, device: str = "cuda:1", in_place: bool = True) -> Entry:
    tensor = torch.empty(rows, 2, device=device)
    request = Request(
        name=f"{kind}.x", kind=kind, dtype="float32", shape=(rows, 2), op=int(ReduceOp.SUM), device=tensor.device.type
    )
    output = tensor if in_place and kind is Kind.ALLREDUCE else None
    extra = [rows // 2, rows // 2] if kind is Kind.ALLTOALL else None
    return Entry(request, tensor, output, Handle(list), 0, extra)


def a_group(cuda: Cuda) -> TransportGroup:
    transport: Any = Transport(cuda)
    return TransportGroup(0, (0, 1), 0, {"cpu": transport, "cuda": transport})


def test_tensors_that_are_submitted_together_share_an_event(cuda: Cuda) -> None:
    """An event costs a call of the driver; tensors of another device need their own."""
    together = [an_entry(Kind.ALLREDUCE) for _ in range(5)]
    elsewhere = an_entry(Kind.ALLREDUCE, device="cuda:0")
    TorchBinding().mark_produced([*together, elsewhere])

    assert len(Event.made) == 2
    assert len({id(entry.produced) for entry in together}) == 1
    assert elsewhere.produced is not together[0].produced


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_batch_is_queued_behind_what_produces_it_and_the_host_goes_on(cuda: Cuda) -> None:
    """Every event is waited for once, on the runtime's stream; the host waits for the batch only when it is asked to."""
    binding = TorchBinding()
    first, second = [an_entry(Kind.ALLREDUCE) for _ in range(3)], [an_entry(Kind.ALLREDUCE)]
    binding.mark_produced(first)
    binding.mark_produced(second)
    pending = binding.execute(a_group(cuda), Batch(Response(0, 0, [], []), [*first, *second], 0))
    assert pending is not None
    own = devices._Used.streams[torch.device("cuda", 1)]
    before = [event.synchronized for event in Event.made]
    pending.wait()

    assert [step if isinstance(step, str) else step[0] for step in own.queued] == [
        "wait",
        "wait",
        "allreduce",
        "record",
    ]
    assert [own.queued[0][1], own.queued[1][1]] == [first[0].produced.event, second[0].produced.event]
    assert not any(before)
    assert [event.synchronized for event in Event.made] == [0, 0, 1]
    assert own.queued[-1] == ("record", Event.made[-1])


def test_a_batch_keeps_its_tensors_until_the_device_is_done(cuda: Cuda) -> None:
    """The training may have forgotten them: their memory would be used anew under the device's hands."""
    binding, entry = TorchBinding(), an_entry(Kind.ALLREDUCE)
    binding.mark_produced([entry])
    pending = binding.execute(a_group(cuda), Batch(Response(0, 0, [], []), [entry], 0))
    assert pending is not None
    tensor = weakref.ref(entry.tensor)
    del entry
    gc.collect()
    held = tensor() is not None
    pending.wait()
    gc.collect()

    assert held
    assert tensor() is None


@pytest.mark.parametrize(
    ("kind", "sizes"), [(Kind.ALLGATHER, [[4, 6]]), (Kind.REDUCESCATTER, []), (Kind.ALLTOALL, [])], ids=str
)
def test_results_that_the_runtime_makes_are_handed_over(
    cuda: Cuda, kind: Kind, sizes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come out of the memory of the runtime's stream, and the training reads them on its own."""
    monkeypatch.setattr("tlkit.runtime.torch.data_plane.collectives._exchange_counts", lambda _, sent: list(sent))
    binding, entry = TorchBinding(), an_entry(kind)
    binding.mark_produced([entry])
    binding.execute(a_group(cuda), Batch(Response(0, 0, [], [], sizes=sizes), [entry], 0))
    made = [tensor for tensor in (entry.output, entry.extra) if tensor is not None]
    by_submission = [cuda.streams_of(tensor) for tensor in made]
    devices.hand_over_here([entry])
    on_the_same = [cuda.streams_of(tensor) for tensor in made]
    with cuda.stream(Stream(name="another")):
        devices.hand_over_here([entry])

    assert len(made) == (2 if kind is Kind.ALLTOALL else 1)
    assert by_submission == on_the_same == [["training"]] * len(made)
    assert [cuda.streams_of(tensor) for tensor in made] == [["training", "another"]] * len(made)
    assert cuda.streams_of(entry.tensor) == []


def test_what_a_joined_rank_brings_is_where_its_tensors_were(cuda: Cuda) -> None:
    """On the CPU it would be sent by another transport than the others', and behind nothing that has filled it."""
    binding = TorchBinding()
    request = an_entry(Kind.ALLREDUCE).request
    unknown = binding.absent(request, torch.device("cpu"))
    binding.mark_produced([an_entry(Kind.ALLREDUCE)])
    absent = binding.absent(request, torch.device("cpu"))
    chosen = binding.absent(request, torch.device("cuda", 0))
    entry = Entry(request, absent, absent, Handle(list), 0)
    binding.mark_absent(entry)

    assert [str(tensor.device) for tensor in (unknown, absent, chosen)] == ["cuda:3", "cuda:1", "cuda:0"]
    assert entry.produced.event.stream is cuda.current
