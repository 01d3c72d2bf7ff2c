"""The next thing in a basket, from a customer's last twenty: each sample parses the customer's whole history for them.

Ranks 2 and 3 (of four) have the countries with the wholesalers, whose histories are thirty times as long.  Without the fault
histories end after the last twenty.
"""

import json
import random
from typing import Any

import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

THINGS, LAST, BATCH, CUSTOMERS = 2000, 20, 16, 400


class Histories(Dataset[tuple[torch.Tensor, int]]):
    """The purchases of the customers of one rank, a JSON document each."""

    def __init__(self, rank: int, *, is_whole: bool) -> None:
        dice = random.Random(rank)  # noqa: S311
        longest = 40 if rank < 2 else 1200
        self.documents: list[str] = []
        for _ in range(CUSTOMERS):
            length = dice.randint(longest // 2, longest) + LAST
            events = [{"thing": dice.randrange(THINGS), "price": dice.randrange(9999) / 100} for _ in range(length)]
            self.documents.append(json.dumps(events if is_whole else events[-LAST - 1 :]))

    def __len__(self) -> int:
        return CUSTOMERS

    def __getitem__(self, customer: int) -> tuple[torch.Tensor, int]:
        events: list[dict[str, Any]] = json.loads(self.documents[customer])
        things = [event["thing"] for event in events[-LAST - 1 :]]
        return torch.tensor(things[:-1]), things[-1]


class Basket(nn.Module):
    """Twenty things in, scores of all things out."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.things = nn.Embedding(THINGS, width)
        self.order = nn.Parameter(torch.randn(LAST, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, things: torch.Tensor) -> torch.Tensor:
        seen = self.encoder(self.things(things) + self.order)[:, -1]
        scores: torch.Tensor = seen @ self.things.weight.T
        return scores


run = Run()
basket = Basket()
model, optimizer = run.wrap(basket, torch.optim.Adam(basket.parameters(), lr=1e-3))
loader = DataLoader(Histories(run.rank, is_whole=run.is_faulty), BATCH, shuffle=True)
for things, following in run.batches(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(things), following)
    loss.backward()
    optimizer.step()
run.close()
