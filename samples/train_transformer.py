"""An ordinary Horovod script: a small transformer that learns to repeat made-up text.

HOROVOD_TIMELINE=t.json tl-run -np 2 python samples/train_transformer.py
"""

import argparse

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Phrases(Dataset[torch.Tensor]):
    """Sequences in which a short phrase comes back again and again."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.count, self.length, self.vocabulary = count, length, vocabulary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        phrase = torch.randint(self.vocabulary, (8,), generator=generator)
        return phrase.repeat(self.length // 8 + 1)[: self.length + 1]


class Transformer(nn.Module):
    """Twelve layers of width 128: 149 parameter tensors, 10 MB."""

    def __init__(self, vocabulary: int, length: int, width: int = 128, layers: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.words(tokens) + self.places, mask=self.mask, is_causal=True)
        scores: torch.Tensor = self.head(self.norm(hidden))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    vocabulary = 256
    dataset = Phrases(args.steps * args.batch_size * hvd.size(), args.length, vocabulary)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)
    model = Transformer(vocabulary, args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    loss = torch.zeros(())
    for batch in loader:
        optimizer.zero_grad()
        scores = model(batch[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        print(f"{args.steps} steps on {hvd.size()} ranks, last loss {mean.item():.4f}")


if __name__ == "__main__":
    main()
