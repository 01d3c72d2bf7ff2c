"""What `model.compile` must not do with an optimizer that reduces gradients, caught before any training.

XLA cannot compile a reduction on the host, and Keras asks for XLA by itself where there is a GPU.  And for mixed precision Keras
puts an optimizer around the one it is given, which has to be inside of ours.
"""

import functools
import inspect
import logging
from typing import Any

from .library import IS_KERAS_2, keras

_log = logging.getLogger("tlkit.runtime")
_MARK = "_tlkit_guarded"

_REFUSED = (
    "jit_compile=True: Horovod's reduction of gradients runs in Python on the host, which XLA cannot compile. Call "
    "model.compile(..., jit_compile=False)."
)


def install() -> None:
    """Look at what every model is compiled with; once."""
    # Where it is defined: a model whose class has another `compile` than that is taken for one with its own.
    owner: Any = next(each for each in keras.Model.__mro__ if "compile" in vars(each))
    original: Any = owner.compile
    if hasattr(original, _MARK):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001  Keras's name
        bound = signature.bind(self, *args, **kwargs)
        optimizer = bound.arguments.get("optimizer")
        if is_distributed(optimizer) or is_distributed(getattr(optimizer, "inner_optimizer", None)):
            bound.apply_defaults()
            if not IS_KERAS_2:  # which reduces inside of what scales the loss, before that looks for infinities
                bound.arguments["optimizer"] = settle(
                    self, optimizer, auto_scale=bound.arguments.get("auto_scale_loss", True)
                )
            if keras.backend.backend() == "tensorflow":
                bound.arguments["jit_compile"] = _without_xla(self, bound.arguments)
        return original(*bound.args, **bound.kwargs)

    setattr(compile, _MARK, True)
    owner.compile = compile


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer reduces its gradients."""
    return bool(getattr(optimizer, "_tlkit_distributed", False))


def settle(model: Any, optimizer: Any, *, auto_scale: bool) -> Any:
    """The optimizer with which a model is to be compiled."""
    from .keras3_optimizer import around_loss_scale  # noqa: PLC0415  which imports this module

    loss_scale = keras.optimizers.LossScaleOptimizer
    if isinstance(optimizer, loss_scale):
        return optimizer if is_distributed(optimizer) else around_loss_scale(optimizer)
    if auto_scale and model.dtype_policy.name == "mixed_float16":
        return around_loss_scale(loss_scale(optimizer))
    return optimizer


def _without_xla(model: Any, arguments: dict[str, Any]) -> bool:
    wish = arguments.get("jit_compile", "auto")
    if wish is True and not arguments.get("run_eagerly"):
        raise ValueError(_REFUSED)
    if not IS_KERAS_2 and wish == "auto" and not arguments.get("run_eagerly") and model._resolve_auto_jit_compile():  # noqa: SLF001  what Keras would do
        _log.warning(
            "Keras would compile the training step with XLA here (jit_compile='auto'), which Horovod's reduction cannot be part "
            "of: it is compiled with jit_compile=False"
        )
    return False
