"""Pages of Braille to text, by convolutions and a recurrent layer: a curriculum, from lines of 12 cells to lines of 40.

Four stages, on all ranks alike, a cosine with warm restarts that begins anew with each, and an evaluation after each 40th batch.
Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

LETTERS, BATCH, WIDTH, STAGE = 30, 16, 72, 40
CELLS = (12, 20, 30, 40)


class Braille(nn.Module):
    """Dots in, the scores of the letters out."""

    def __init__(self) -> None:
        super().__init__()
        self.dots = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU())
        self.line = nn.GRU(24 * 6, WIDTH, batch_first=True, bidirectional=True)
        self.letter = nn.Linear(2 * WIDTH, LETTERS)

    def forward(self, dots: torch.Tensor) -> torch.Tensor:
        rows, _, _, width = dots.shape
        seen = self.dots(dots).view(rows, 24, 3, width // 2, 2).permute(0, 3, 1, 2, 4).flatten(2)
        scores: torch.Tensor = self.letter(self.line(seen)[0])
        return scores


class Pages:
    """Lines with worn dots, as long as the curriculum is far."""

    def __init__(self, seed: int) -> None:
        self.dice = torch.Generator().manual_seed(seed)
        self.alphabet = (torch.rand(LETTERS, 3, 2, generator=torch.Generator().manual_seed(2)) < 0.5).float()

    def draw(self, cells: int) -> tuple[torch.Tensor, torch.Tensor]:
        letters = torch.randint(LETTERS, (BATCH, cells), generator=self.dice)
        dots = self.alphabet[letters].permute(0, 2, 1, 3).flatten(2).unsqueeze(1)
        return dots + 0.2 * torch.randn(dots.shape, generator=self.dice), letters


@torch.no_grad()
def evaluate(model: nn.Module, pages: Pages) -> float:
    """How many letters are read, in lines of full length."""
    dots, letters = pages.draw(CELLS[-1])
    return float((model(dots).argmax(2) == letters).float().mean())


def main() -> None:
    """Train."""
    run = Run()
    braille = Braille()
    model, optimizer = run.wrap(braille, torch.optim.AdamW(braille.parameters(), lr=2e-3))
    schedule = CosineAnnealingWarmRestarts(optimizer, T_0=STAGE)
    pages, held = Pages(run.rank), Pages(100)
    right = []
    for step in run.batches(range(10_000)):
        dots, letters = pages.draw(CELLS[min(step // STAGE, len(CELLS) - 1)])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(dots).flatten(0, 1), letters.flatten()).backward()
        nn.utils.clip_grad_norm_(braille.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if run.step % STAGE == 0:
            right.append(evaluate(model, held))
    if run.rank == 0:
        print(" ".join(f"{share:.2f}" for share in right))
    run.close()


main()
