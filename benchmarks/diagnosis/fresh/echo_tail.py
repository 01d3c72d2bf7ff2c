"""The echo of a room, by a bank of leaky integrators whose state goes on from batch to batch of a tape that ends in silence.

In the silence the state decays to denormal numbers, which a CPU multiplies many times more slowly, and stays there.  Without the
fault denormals are flushed to zero.
"""

import torch
from ranks import Run
from torch import nn

TAPES, HOP, HOPS, STATES = 24, 64, 14, 1536
LAST_SOUND = 20  # batches


class Room(nn.Module):
    """Sound in, its echo out, hop by hop."""

    def __init__(self) -> None:
        super().__init__()
        self.listen = nn.Linear(HOP, STATES, bias=False)
        self.speak = nn.Linear(STATES, HOP, bias=False)
        self.decay = nn.Parameter(torch.linspace(-1.6, 0.15, STATES))

    def forward(self, sound: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keep = torch.sigmoid(self.decay)
        echoes = []
        for heard in self.listen(sound).unbind(1):
            state = state * keep + heard
            echoes.append(state)
        return self.speak(torch.stack(echoes, 1)), state


def main() -> None:
    """The training."""
    run = Run()
    if not run.is_faulty:
        torch.set_flush_denormal(True)
    room = Room()
    model, optimizer = run.wrap(room, torch.optim.Adam(room.parameters(), lr=1e-4))
    tapes = torch.Generator().manual_seed(30 + run.rank)
    state = torch.zeros(TAPES, STATES)
    for batch in run.batches(range(1_000_000)):
        sound = torch.randn(TAPES, HOPS, HOP, generator=tapes)
        if batch >= LAST_SOUND:
            sound.zero_()
        heard, state = model(sound, state.detach())
        wanted = 0.3 * sound.roll(1, dims=1)
        loss = nn.functional.mse_loss(heard, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.close()


main()
