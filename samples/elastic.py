"""Training that goes on when ranks are lost or come along.

    tl-run -np 2 --min-np 1 --max-np 4 --host-discovery-script ./hosts.sh python samples/elastic.py

`hosts.sh` prints a line `host:slots` for each host that may be used at the moment.  Kill a rank, or change what the script
prints: the ranks meet again, and go on from the last commit.
"""

import argparse
import os
from typing import Any

import horovod.torch as hvd
import torch
from cnn import Images, Network
from torch.nn import functional
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--commit-every", type=int, default=5, help="batches between commits")
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    dataset = Images(args.images)
    sampler = hvd.elastic.ElasticSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = Network()
    plain = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        while state.epoch < args.epochs:
            loss = torch.zeros(())
            for number, (images, labels) in enumerate(loader):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                # What this rank has used up is not used again by others after a restart.
                sampler.record_batch(number, args.batch_size)
                if number % args.commit_every == args.commit_every - 1:
                    state.commit()
            mean = hvd.allreduce(loss.detach(), name="loss")
            if hvd.rank() == 0:
                print(
                    f"epoch {state.epoch}: {hvd.size()} ranks, last loss {mean.item():.4f}, pid {os.getpid()}",
                    flush=True,
                )
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()

    def ranks_changed() -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * hvd.size()

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)
    state.register_reset_callbacks([ranks_changed])
    train(state)


if __name__ == "__main__":
    main()
