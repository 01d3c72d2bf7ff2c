"""The memory in which small tensors travel together."""

import torch


class FusionBuffers:
    """One reusable flat buffer a dtype and device, grown to what is needed and never beyond the largest batch."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._pieces: dict[tuple[torch.dtype, torch.device], tuple[list[int], tuple[torch.Tensor, ...]]] = {}

    def take(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A flat view of `numel` elements.  The next call for the same dtype and device overwrites it."""
        buffer = self._buffers.get((dtype, device))
        if buffer is None or buffer.numel() < numel:
            # The next one to use it may not be in inference mode, if this one is.
            with torch.inference_mode(mode=False):
                buffer = torch.empty(numel, dtype=dtype, device=device)
            self._buffers[dtype, device] = buffer
            self._pieces.pop((dtype, device), None)
        return buffer.narrow(0, 0, numel)

    def split(self, dtype: torch.dtype, device: torch.device, sizes: list[int]) -> tuple[torch.Tensor, ...]:
        """What `take` has returned last, cut into pieces; a training does that alike in every step."""
        key = (dtype, device)
        known = self._pieces.get(key)
        if known is None or known[0] != sizes:
            pieces: tuple[torch.Tensor, ...] = torch.split(self._buffers[key].narrow(0, 0, sum(sizes)), sizes)
            known = self._pieces[key] = (sizes, pieces)
        return known[1]
