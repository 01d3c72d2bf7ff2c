"""What a model is like that costs time in every step: double precision, gradients that nobody uses or that are zero.

What it computes again is found by repeats.py.

Looked at in the few steps in which settings are (costly_settings.py), at their end, when gradients are there and not yet cleared.
"""

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from ...timeline.vocabulary import CostlySetting
from .repeats import Repeats

_log = logging.getLogger("tlkit.instrument")

#: Of the model's elements so many are enough to speak of.
_MIN_SHARE: Final = 0.1
#: The same of the time of forward and backward.
_MIN_SHARE_IN_VAIN: Final = 0.02
#: A script that calls very many modules by themselves has no model of which anything could be said.
_MAX_MODULES: Final = 16
#: Elements of a table below which it does not matter how its gradient is kept.
_MIN_TABLE: Final = 1 << 20
#: So many rows of a table stand for all.
_ROWS_LOOKED_AT: Final = 4096
_MOSTLY: Final = 0.9
#: So many elements of a gradient are looked at first.
_ELEMENTS_LOOKED_AT: Final = 256


class ModelHabits:
    """The modules that were called and the parameters that optimizers update, of one recording."""

    def __init__(self) -> None:
        self._modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._updated: dict[int, weakref.ref[torch.Tensor]] = {}
        """Both by identity: neither is compared, and one that is gone may have had the same."""
        self.repeats = Repeats()
        self._in_vain = ""

    def called(self, module: torch.nn.Module) -> None:
        """The training thread calls a module, outside of any other."""
        self._modules[id(module)] = weakref.ref(module)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped.  Some are of another making, and their groups of any kind."""
        try:
            for group in getattr(optimizer, "param_groups", ()):
                self._updated.update((id(one), weakref.ref(one)) for one in group["params"])
        except Exception:
            _log.debug("the optimizer cannot be looked at", exc_info=True)

    def found(self) -> dict[str, float]:
        """What is so now, at the end of a step, and of which share of the model's elements, or of forward and backward.

        Of what cannot be looked at nothing is known: the training goes on.
        """
        again = self.repeats.found()
        self._in_vain = ""
        try:
            modules = [module for kept in self._modules.values() if (module := kept()) is not None]
            return again | (self._found(modules) | self._zero(modules) if len(modules) <= _MAX_MODULES else {})
        except Exception:
            _log.debug("the model cannot be looked at", exc_info=True)
            return again

    def details(self) -> dict[str, str]:
        """Words for what is computed again, and for what is computed in vain."""
        return self.repeats.details() | ({str(CostlySetting.ZERO_GRADIENTS): self._in_vain} if self._in_vain else {})

    def loss_share(self) -> float:
        """How much of backward is the loss's, as far as the script computes it outside of modules."""
        return self.repeats.loss_share()

    def _zero(self, modules: Sequence[torch.nn.Module]) -> dict[str, float]:
        """Modules whose gradients are all zero, if not those of the whole model are: then they have been cleared."""
        known: dict[int, bool] = {}

        def is_zero(weight: torch.Tensor) -> bool:
            if id(weight) not in known:
                known[id(weight)] = _is_zero(weight.grad)
            return known[id(weight)]

        share, name = self.repeats.in_vain(is_zero)
        everything = (weight for module in modules for weight in module.parameters() if weight.requires_grad)
        if share < _MIN_SHARE_IN_VAIN or all(map(is_zero, everything)):
            return {}
        self._in_vain = name
        return {str(CostlySetting.ZERO_GRADIENTS): share}

    def _found(self, modules: Sequence[torch.nn.Module]) -> dict[str, float]:
        parameters = list({id(one): one for module in modules for one in module.parameters()}.values())
        double = _elements(one for one in parameters if one.dtype == torch.float64)
        with_gradient = [one for one in parameters if one.grad is not None]
        # Optimizers that keep parameters of their own, in another precision, update the model's through them.
        updated = [one for one in with_gradient if self._is_updated(one)]
        untrained = _elements(with_gradient) - _elements(updated) if updated else 0
        concerned = {
            CostlySetting.DOUBLE_PRECISION: double,
            CostlySetting.UNTRAINED_GRADIENTS: untrained,
            CostlySetting.MOSTLY_ZERO_GRADIENTS: _elements(filter(_is_mostly_zero, _embeddings(modules))),
        }
        all_elements = max(_elements(parameters), 1)
        shares = {setting: elements / all_elements for setting, elements in concerned.items()}
        return {str(setting): share for setting, share in shares.items() if share >= _MIN_SHARE}

    def _is_updated(self, parameter: torch.Tensor) -> bool:
        known = self._updated.get(id(parameter))
        return known is not None and known() is parameter


def _embeddings(modules: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """Weights of large tables of which a step reads some rows."""
    parts = (part for module in modules for part in module.modules())
    found = (part.weight for part in parts if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)))
    return list({id(weight): weight for weight in found if weight.numel() >= _MIN_TABLE}.values())


def _is_mostly_zero(table: torch.Tensor) -> bool:
    """Whether hardly a row of a table has a gradient, and it is kept as if all had."""
    gradient = table.grad
    if gradient is None or gradient.layout != torch.strided or type(gradient) is not torch.Tensor:
        return False
    if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    some = gradient.detach()[:: max(len(gradient) // _ROWS_LOOKED_AT, 1)]
    return float((some == 0).all(dim=1).float().mean()) >= _MOSTLY


def _is_zero(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient on the processor is zero everywhere; a few elements tell it of most that are not."""
    if (
        gradient is None
        or type(gradient) is not torch.Tensor
        or gradient.layout != torch.strided
        or not gradient.is_cpu
    ):
        return False
    values = gradient.detach().reshape(-1)
    some = values[:: max(values.numel() // _ELEMENTS_LOOKED_AT, 1)]
    return not bool(some.any()) and not bool(values.any())


def _elements(parameters: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() for one in parameters)
