"""Which of twelve bells is struck next, from recordings of peals: a transformer over strikes, on two ranks with a shard each.

The collator pads to the longest peal of the shard. Rank 1's shard holds one peal that is three times as long as any other,
so all its batches are; rank 0 waits. Without the fault it pads to the longest peal of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from ranks import Run
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

BELLS, WIDTH, BATCH, PEALS = 12, 64, 12, 600
SHORTEST, LONGEST, RECORD = 40, 56, 168
SILENCE = BELLS


class Peals(Dataset[torch.Tensor]):
    """A shard of recorded peals; a peal is a row of bells."""

    def __init__(self, shard: int) -> None:
        dice = torch.Generator().manual_seed(shard)
        lengths = torch.randint(SHORTEST, LONGEST + 1, (PEALS,), generator=dice).tolist()
        if shard == 1:
            lengths[PEALS // 2] = RECORD
        self.peals = [torch.randint(BELLS, (length,), generator=dice) for length in lengths]

    def __len__(self) -> int:
        return len(self.peals)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.peals[index]

    @property
    def longest(self) -> int:
        """In strikes."""
        return max(len(peal) for peal in self.peals)


@dataclass
class Collator:
    """Peals to one tensor, with silence at the end."""

    length: int | None

    def __call__(self, peals: Sequence[torch.Tensor]) -> torch.Tensor:
        padded: torch.Tensor = pad_sequence(list(peals), batch_first=True, padding_value=SILENCE)
        if self.length is not None:
            padded = nn.functional.pad(padded, (0, self.length - padded.shape[1]), value=SILENCE)
        return padded


class Ringer(nn.Module):
    """Strikes in, scores of the next strike out."""

    def __init__(self) -> None:
        super().__init__()
        self.bell = nn.Embedding(BELLS + 1, WIDTH)
        self.place = nn.Embedding(RECORD, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.scores = nn.Linear(WIDTH, BELLS)

    def forward(self, peals: torch.Tensor) -> torch.Tensor:
        length = peals.shape[1]
        later = nn.Transformer.generate_square_subsequent_mask(length)
        strikes = self.bell(peals) + self.place.weight[:length]
        scores: torch.Tensor = self.scores(self.body(strikes, mask=later, is_causal=True))
        return scores


def main() -> None:
    """Train."""
    run = Run()
    peals = Peals(run.rank)
    collator = Collator(peals.longest if run.is_faulty else None)
    loader = DataLoader(peals, BATCH, shuffle=True, drop_last=True, collate_fn=collator)
    network = Ringer()
    model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters(), lr=1e-3))
    criterion = nn.CrossEntropyLoss(ignore_index=SILENCE)
    for batch in run.batches(loader):
        optimizer.zero_grad()
        scores = model(batch[:, :-1])
        loss = criterion(scores.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    run.close()


main()
