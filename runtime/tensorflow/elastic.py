"""`hvd.elastic` of `horovod.tensorflow`: training that goes on when ranks come and go."""

from collections.abc import Callable
from typing import Any

from ..core.elastic import ObjectState, State, run_fn
from ..core.errors import HorovodInternalError
from .errors import is_internal
from .functions import broadcast_object, broadcast_variables
from .mpi_ops import init, rank, shutdown


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function that takes a `State` first: it is run until it returns, whatever ranks come and go."""

    def in_our_words(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except HorovodInternalError:
            raise
        except Exception as error:
            if is_internal(error):
                raise HorovodInternalError(str(error)) from error
            raise

    in_our_words.__name__ = getattr(func, "__name__", "train")
    return run_fn(in_our_words, reset)


def reset() -> None:
    """Let the ranks meet anew."""
    shutdown()
    init()


class TensorFlowState(ObjectState):
    """State of variables of TensorFlow, and of plain objects beside them."""

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        """Begin with these.

        Args:
            variables: of TensorFlow or Keras, in the same order on all ranks.
            session: taken for compatibility.
            kwargs: plain objects, which become attributes.
        """
        del session
        self.variables = list(variables or ())
        self._values = [variable.numpy() for variable in self.variables]
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def save(self) -> None:
        """See `State`."""
        self._values = [variable.numpy() for variable in self.variables]
        super().save()

    def restore(self) -> None:
        """See `State`."""
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """See `State`."""
        broadcast_variables(self.variables, 0)
        self._values = [variable.numpy() for variable in self.variables]
        super().sync()


def __getattr__(name: str) -> Any:
    """`TensorFlowKerasState`, for those who have Keras."""
    if name == "TensorFlowKerasState":
        from ..keras.elastic import KerasState  # noqa: PLC0415  as the docstring says

        return KerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ObjectState", "State", "TensorFlowState", "reset", "run"]
