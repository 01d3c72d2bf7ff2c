"""Only the head of a pretrained encoder is trained, but nobody froze the encoder.

The optimizer has the head's parameters alone, and backward goes through the whole encoder all the same.
"""

import torch
from ranks import Run
from torch import nn


class Pretrained(nn.Module):
    """An encoder over tokens, and a head on its first output."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(1000, 128)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        layers = [nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
        self.head = nn.Sequential(*layers, nn.Linear(512, 20))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.encoder(self.embedding(tokens))[:, 0])
        return scores


run = Run()
model = Pretrained()
run.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
if not run.is_faulty:
    model.embedding.requires_grad_(requires_grad=False)
    model.encoder.requires_grad_(requires_grad=False)
_, optimizer = run.wrap(model.head, torch.optim.Adam(model.head.parameters(), lr=1e-3))
generator = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    tokens = torch.randint(1000, (12, 48), generator=generator)
    model.zero_grad()
    nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 20).backward()
    optimizer.step()
run.close()
