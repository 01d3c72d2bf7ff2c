"""A thread cuts texts into tokens in Python, all the time, beside the training."""

import threading

import torch
from ranks import Run, Transformer, train_step

TEXT = "the quick brown fox jumps over the lazy dog " * 200


def cut() -> None:
    counts: dict[str, int] = {}
    while True:
        for word in TEXT.split(" "):
            for end in range(1, len(word) + 1):
                counts[word[:end]] = counts.get(word[:end], 0) + 1


run = Run()
model, optimizer = run.wrap(Transformer(64, 2))
if run.is_faulty:
    threading.Thread(target=cut, daemon=True).start()
for _ in run.batches(range(10_000)):
    train_step(model, optimizer, torch.randint(0, 1000, (8, 48)))
run.close()
