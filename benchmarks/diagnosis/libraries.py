"""The two ways to train on several ranks, ours and DistributedDataParallel, behind the calls that a training makes."""

from typing import Any, Protocol

import torch
from torch import distributed, nn


class Library(Protocol):
    """What the loop asks of the library that joins the ranks."""

    rank: int
    size: int

    def wrap(self, model: nn.Module, *, pairs: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model and an optimizer whose gradients are averaged; over two ranks each if `pairs`."""

    def average(self, value: torch.Tensor, name: str) -> None:
        """A blocking allreduce."""

    def broadcast_object(self, value: Any) -> None: ...

    def allgather_object(self, value: Any) -> None: ...

    def barrier(self) -> None: ...

    def close(self) -> None: ...


class Horovod:
    """Horovod's four lines."""

    def __init__(self, *, pairs: bool) -> None:
        import horovod.torch as hvd  # noqa: PLC0415  DDP runs go without

        self.hvd = hvd
        self.sets: list[Any] = []
        hvd.init(process_sets="dynamic" if pairs else None)
        if pairs:
            self.sets = [hvd.add_process_set([first, first + 1]) for first in range(0, hvd.size(), 2)]
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()

    def wrap(self, model: nn.Module, *, pairs: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01 * self.size, momentum=0.9)
        where = {"process_set": self.sets[self.rank // 2]} if pairs else {}
        optimizer = self.hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **where)
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self.hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return model, optimizer

    def average(self, value: torch.Tensor, name: str) -> None:
        self.hvd.allreduce(value, name=name)

    def broadcast_object(self, value: Any) -> None:
        self.hvd.broadcast_object(value, root_rank=0, name="settings")

    def allgather_object(self, value: Any) -> None:
        self.hvd.allgather_object(value, name="results")

    def barrier(self) -> None:
        self.hvd.barrier()

    def close(self) -> None:
        # Pairs end when they like, and a rank that shuts down ends the job of all.
        self.hvd.barrier()
        self.hvd.shutdown()


class Ddp:
    """DistributedDataParallel on Gloo, whose process group exists already."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def wrap(self, model: nn.Module, *, pairs: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        group = None
        if pairs:
            group, _ = distributed.new_subgroups(group_size=2)
        wrapped = nn.parallel.DistributedDataParallel(model, process_group=group)
        return wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.02, momentum=0.9)

    def average(self, value: torch.Tensor, name: str) -> None:  # noqa: ARG002  torch has no names
        distributed.all_reduce(value)

    def broadcast_object(self, value: Any) -> None:
        distributed.broadcast_object_list([value], src=0)

    def allgather_object(self, value: Any) -> None:
        distributed.all_gather_object([None] * self.size, value)

    def barrier(self) -> None:
        distributed.barrier()

    def close(self) -> None:
        distributed.destroy_process_group()
