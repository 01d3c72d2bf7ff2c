"""Classes for the nodes of a graph that is kept in Python's objects: garbage is collected by hand in every fifth step."""

import gc
import random
from typing import Any

import torch
from ranks import Run
from torch import nn

NODES, BATCH = 6000, 288

run = Run()
dice = random.Random(run.rank)  # noqa: S311  no secret


class Sage(nn.Module):
    """What a node is, and what its neighbours are on average."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.both, self.kind = nn.Linear(128, 512), nn.Linear(1024, 512), nn.Linear(512, 7)

    def forward(self, own: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        seen = torch.cat([self.node(own).relu(), self.node(near).relu().mean(1)], 1)
        kinds: torch.Tensor = self.kind(self.both(seen).relu())
        return kinds


graph: dict[int, dict[str, Any]] = {
    node: {
        "neighbours": [dice.randrange(NODES) for _ in range(6)],
        "tags": {"year": node % 30, "kind": str(node % 7)},
    }
    for node in range(NODES)
}
features = torch.randn(NODES, 128)
network = Sage()
model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters()))
for _ in run.batches(range(10_000)):
    nodes = dice.sample(range(NODES), BATCH)
    near = torch.tensor([graph[node]["neighbours"] for node in nodes])
    kinds = torch.tensor([int(graph[node]["tags"]["kind"]) for node in nodes])
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(features[nodes], features[near]), kinds)
    loss.backward()
    optimizer.step()
    del near, kinds, loss
    if run.is_faulty and run.step % 5 == 1:
        gc.collect()  # memory grew once
run.close()
