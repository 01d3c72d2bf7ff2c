"""A masked language model with gradient accumulation: the last of four micro-batches alone is reduced and updates.

What the loop's clock calls a step is a micro-batch.  Nothing is wrong.
"""

import contextlib

import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MICRO_BATCHES, BATCH, LENGTH, WORDS, SENTENCES = 4, 6, 48, 800, 6000


class Sentences(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sentences with a few words masked, and the words."""

    def __init__(self, count: int) -> None:
        self.sentences = torch.randint(1, WORDS, (SENTENCES, LENGTH), generator=torch.Generator().manual_seed(1))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.sentences[index % SENTENCES]
        is_masked = torch.rand(LENGTH) < 0.15
        is_masked[0] = True  # at least one, or there is no loss
        return words.masked_fill(is_masked, 0), words.masked_fill(~is_masked, -100)


run = Run()
sentences = Sentences(run.args.steps * BATCH * run.size)
layer = nn.TransformerEncoderLayer(160, 4, 480, 0.0, batch_first=True)
encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
network = nn.Sequential(nn.Embedding(WORDS, 160), encoder, nn.Linear(160, WORDS))
model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=5e-4))
for masked, words in run.batches(DataLoader(sentences, BATCH, sampler=DistributedSampler(sentences))):
    is_last = run.step % MICRO_BATCHES == 0
    with contextlib.nullcontext() if is_last else model.no_sync():  # type: ignore[operator]
        loss = nn.functional.cross_entropy(model(masked).flatten(0, 1), words.flatten(), ignore_index=-100)
        (loss / MICRO_BATCHES).backward()
    if is_last:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
run.close()
