"""Names in product titles, by an LSTM and a conditional random field whose partition function loops over the tags in Python.

Each tag of each position has a logsumexp of its own, as in the tutorial.  Without the fault there is one for all tags.
"""

import torch
from ranks import Run
from torch import nn

TAGS, LENGTH, BATCH = 9, 24, 48


class Field(nn.Module):
    """A linear chain over the tags."""

    def __init__(self, *, tag_by_tag: bool) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(TAGS, TAGS) * 0.1)
        self.tag_by_tag = tag_by_tag

    def partition(self, emissions: torch.Tensor) -> torch.Tensor:
        """The logarithm of the sum over all sequences of tags."""
        alpha = emissions[:, 0]
        for position in range(1, emissions.shape[1]):
            if self.tag_by_tag:
                following = []
                for tag in range(TAGS):
                    scores = alpha + self.transitions[:, tag] + emissions[:, position, tag].unsqueeze(1)
                    following.append(torch.logsumexp(scores, dim=1))
                alpha = torch.stack(following, dim=1)
            else:
                alpha = torch.logsumexp(alpha.unsqueeze(2) + self.transitions, dim=1) + emissions[:, position]
        return torch.logsumexp(alpha, dim=1)

    def forward(self, emissions: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        gold = emissions.gather(2, tags.unsqueeze(2)).sum((1, 2)) + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        loss: torch.Tensor = (self.partition(emissions) - gold).mean()
        return loss


class Tagger(nn.Module):
    """Words in, the negative log likelihood of their tags out."""

    def __init__(self, *, tag_by_tag: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(800, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True, bidirectional=True)
        self.emit = nn.Linear(256, TAGS)
        self.field = Field(tag_by_tag=tag_by_tag)

    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.words(words))
        loss: torch.Tensor = self.field(self.emit(hidden), tags)
        return loss


run = Run()
network = Tagger(tag_by_tag=run.is_faulty)
model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters(), lr=2e-3))
generator = torch.Generator().manual_seed(100 + run.rank)
for _ in run.batches(range(1000)):
    words = torch.randint(800, (BATCH, LENGTH), generator=generator)
    optimizer.zero_grad()
    model(words, words % TAGS).backward()
    optimizer.step()
run.close()
