"""Large batches on many ranks: learning rate scaled with the batch, warmed up, and LARS.

    tl-run -np 4 python samples/large_batch.py --batches-per-step 4

The learning rate of a batch of 256 is multiplied with how many times larger the batch is that all ranks make together, begins
small and grows over the warm-up (Goyal et al. 2017, arXiv:1706.02677), and then falls along a cosine.  `--lars` scales each
layer's step with the ratio of the norms of its weights and its gradient (You et al. 2017, arXiv:1708.03888).
"""

import argparse
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from cnn import Images, Network
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

#: The batch for which the learning rate is given.
REFERENCE_BATCH = 256


class Lars(torch.optim.SGD):
    """SGD with momentum whose steps are in proportion to each layer's weights."""

    trust = 0.01

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or parameter.dim() < 2:  # biases and norms keep the plain step
                    continue
                weights, gradient = parameter.norm(), parameter.grad.norm()
                if weights > 0 and gradient > 0:
                    decay = group["weight_decay"]
                    parameter.grad.mul_(self.trust * weights / (gradient + decay * weights))
        super().step()
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank and backward pass")
    parser.add_argument(
        "--batches-per-step", type=int, default=1, help="backward passes before gradients are exchanged"
    )
    parser.add_argument("--learning-rate", type=float, default=0.1, help=f"for a batch of {REFERENCE_BATCH}")
    parser.add_argument("--warmup-epochs", type=float, default=1.0)
    parser.add_argument("--lars", action="store_true")
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    dataset = Images(args.images)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = Network()

    batch = args.batch_size * args.batches_per_step * hvd.size()
    rate = args.learning_rate * batch / REFERENCE_BATCH
    kind = Lars if args.lars else torch.optim.SGD
    plain = kind(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-5)
    optimizer = hvd.DistributedOptimizer(
        plain, named_parameters=model.named_parameters(), backward_passes_per_step=args.batches_per_step
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    steps_an_epoch = len(loader) // args.batches_per_step
    if not steps_an_epoch:
        raise SystemExit("an epoch has fewer batches than a step takes: more --images or fewer --batches-per-step")
    warmup = max(1, round(args.warmup_epochs * steps_an_epoch))
    total = args.epochs * steps_an_epoch
    schedule = SequentialLR(
        optimizer,
        [
            LinearLR(optimizer, start_factor=1 / hvd.size(), total_iters=warmup),
            CosineAnnealingLR(optimizer, T_max=max(1, total - warmup)),
        ],
        milestones=[warmup],
    )
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses = []
        batches = iter(loader)
        for _ in range(steps_an_epoch):
            optimizer.zero_grad()
            for _ in range(args.batches_per_step):
                images, labels = next(batches)
                loss = functional.cross_entropy(model(images), labels)
                (loss / args.batches_per_step).backward()
                losses.append(loss.detach())
            optimizer.step()
            schedule.step()
        mean = hvd.allreduce(torch.stack(losses).mean(), name="loss")
        if hvd.rank() == 0:
            print(
                f"epoch {epoch}: batch {batch}, learning rate {schedule.get_last_lr()[0]:.4f}, loss {mean.item():.4f}"
            )


if __name__ == "__main__":
    main()
