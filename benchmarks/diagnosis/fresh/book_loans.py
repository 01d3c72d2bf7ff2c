"""Which book a reader borrows next: embeddings of books that have a long tail of rare ones, and a network over the last loans.

One optimizer has two groups, embeddings without decay and the rest with it. The loss corrects for how popular books are,
and a bit of Python raises the strength of this correction at milestones. A loan at the end of the vocabulary is rare, ranks
have the same mix. Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn

BOOKS, HISTORY, BATCH, WIDTH, DEPTH = 1500, 12, 72, 64, 2
MILESTONES = {1: 0.0, 30: 0.5, 70: 0.8, 110: 1.0}

Loans = tuple[torch.Tensor, torch.Tensor]


class NextLoan(nn.Module):
    """The last loans in, scores of all books out."""

    def __init__(self) -> None:
        super().__init__()
        self.book = nn.Embedding(BOOKS, WIDTH)
        self.age = nn.Parameter(torch.zeros(HISTORY, WIDTH))
        self.mix = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 3 * WIDTH, dropout=0.0, batch_first=True) for _ in range(DEPTH)
        )

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        loans = self.book(history) + self.age
        for layer in self.mix:
            loans = layer(loans)
        scores: torch.Tensor = loans[:, -1] @ self.book.weight.T
        return scores


def popularity() -> torch.Tensor:
    """Zipf's law."""
    weights = 1 / torch.arange(1, BOOKS + 1).pow(0.9)
    return weights / weights.sum()


def make_loans(count: int, seed: int) -> Loans:
    """What was borrowed, and what was borrowed next."""
    dice = torch.Generator().manual_seed(seed)
    loans = torch.multinomial(popularity(), count * (HISTORY + 1), replacement=True, generator=dice)
    loans = loans.view(count, HISTORY + 1)
    return loans[:, :-1].contiguous(), loans[:, -1].contiguous()


def groups_of(network: NextLoan) -> list[dict[str, object]]:
    """Tables, and what is multiplied."""
    tables = [network.book.weight, network.age]
    rest = [parameter for parameter in network.parameters() if all(parameter is not table for table in tables)]
    return [
        {"params": tables, "lr": 3e-3, "weight_decay": 0.0},
        {"params": rest, "lr": 1e-3, "weight_decay": 0.01},
    ]


def main() -> None:
    """Train."""
    run = Run()
    network = NextLoan()
    model, optimizer = run.wrap(network, torch.optim.AdamW(groups_of(network), fused=True))
    popular = popularity().log()
    strength, total = 0.0, torch.zeros(())
    history, following = make_loans(40 * BATCH, run.rank)
    for loans, truth in run.batches(list(zip(history.split(BATCH), following.split(BATCH), strict=True))):
        strength = MILESTONES.get(run.step, strength)
        optimizer.zero_grad()
        scores = torch.add(model(loans), popular, alpha=strength)
        loss = nn.functional.cross_entropy(scores, truth)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    if run.rank == 0:
        print(f"mean loss {float(total) / run.step:.3f}")
    run.close()


main()
