"""What a timeline says of an executed collective, of which most is the same in every step."""

from typing import Any, cast

import torch

from tlkit.runtime.core.binding import ProcessGroup
from tlkit.runtime.core.control.messages import Request, Response
from tlkit.runtime.core.descriptions import MAX_KNOWN, Descriptions
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.operations import ReduceOp
from tlkit.runtime.core.work import Batch, Entry, Handle
from tlkit.timeline.record.shard_format import Call


class Group:
    """A process set that counts how often it is asked."""

    ranks = (0, 1)

    def __init__(self) -> None:
        self.asked = 0

    def algorithm(self, _: str) -> str:
        self.asked += 1
        return "gloo"


def a_request(name: str, numel: int = 4, op: ReduceOp = ReduceOp.SUM) -> Request:
    return Request(name=name, kind=Kind.ALLREDUCE, dtype="float32", shape=(numel,), op=int(op))


def a_batch(requests: list[Request], ids: list[int], **response: Any) -> Batch:
    entries = []
    for request in requests:
        tensor = torch.zeros(request.shape)
        entries.append(Entry(request, tensor, tensor, Handle(list), 0))
    return Batch(Response(**{"seq": 3, "process_set": 0, "ids": ids, "names": [], **response}), entries, 0)


def describe(descriptions: Descriptions, batch: Batch, group: Group) -> dict[str, Any]:
    return descriptions.describe(batch, cast("ProcessGroup", group), None, None)


def test_the_same_batch_is_looked_at_once() -> None:
    """What it is does not change; its number does."""
    descriptions, group, requests = Descriptions(), Group(), [a_request("a"), a_request("b")]

    first = describe(descriptions, a_batch(requests, [0, 2]), group)
    later = describe(descriptions, a_batch(requests, [0, 2], seq=4), group)

    assert {**first, "seq": 4} == later
    assert tuple(later[k] for k in ("bytes", "tensors", "algorithm", "op", "dtype")) == (
        32,
        2,
        "gloo",
        "sum",
        "float32",
    )
    assert group.asked == 1


def test_an_id_that_stands_for_another_shape_is_looked_at_again() -> None:
    """Whichever tensor of the batch it is."""
    descriptions, group = Descriptions(), Group()
    kept = [a_request("a"), a_request("c")]
    describe(descriptions, a_batch([kept[0], a_request("b"), kept[1]], [0, 3]), group)

    assert describe(descriptions, a_batch([kept[0], a_request("b", 8), kept[1]], [0, 3]), group)["bytes"] == 64


def test_a_number_that_comes_back_is_another_set() -> None:
    """Its ranks are others."""
    descriptions, requests, group = Descriptions(), [a_request("a")], Group()
    describe(descriptions, a_batch(requests, [0, 1], process_set=1), group)
    other = Group()
    other.ranks = (0, 2)

    assert describe(descriptions, a_batch(requests, [0, 1], process_set=1), other)["ranks"] == [0, 2]


def test_values_that_came_along_were_moved_by_the_control_plane() -> None:
    """Also where the same tensors go through the transport in other steps."""
    descriptions, requests, group = Descriptions(), [a_request("a")], Group()
    describe(descriptions, a_batch(requests, [0, 1]), group)

    assert describe(descriptions, a_batch(requests, [0, 1], results=[b""]), group)["algorithm"] == "control"
    assert describe(descriptions, a_batch(requests, [0, 1]), group)["algorithm"] == "gloo"


def test_what_is_said_once_is_not_kept() -> None:
    """Neither what has names, nor more batches than a training repeats."""
    descriptions, group = Descriptions(), Group()
    for number in range(MAX_KNOWN + 5):
        describe(descriptions, a_batch([a_request("a")], [number, 1]), group)
        describe(descriptions, a_batch([a_request("a")], [], names=["a"]), group)

    assert len(descriptions._known) <= MAX_KNOWN


def test_who_asks_is_said_as_it_is_in_each_step() -> None:
    """The same tensors may be asked for by another line, or by two."""
    descriptions, group, requests = Descriptions(), Group(), [a_request("a"), a_request("b")]
    calls = [Call("user", blocking=False, where=f"train.py:{line}") for line in (1, 2)]
    said = []
    for asked in ([calls[0], calls[0]], [calls[1], calls[1]], calls):
        batch = a_batch(requests, [0, 2])
        for entry, call in zip(batch.entries, asked, strict=True):
            entry.handle.call = call
        said.append(describe(descriptions, batch, group)["where"])

    assert said == ["train.py:1", "train.py:2", "mixed"]
