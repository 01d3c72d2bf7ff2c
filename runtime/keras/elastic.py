"""`hvd.elastic` for Keras: training that goes on when ranks come and go."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.elastic import ObjectState, State, run_fn
from ..core.errors import HorovodInternalError
from ..torch.basics import rank
from ..torch.functions import broadcast_object
from .callbacks import Logs, sync_state
from .library import build_optimizer, keras, optimizer_variables, to_numpy
from .starting import reset
from .values import broadcast_variables

#: In the words of an error of ours, whatever the backend has made of it.
_MARK = "HorovodInternalError"


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function that takes a `State` first: it is run until it returns, whatever ranks come and go."""

    def in_our_words(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except HorovodInternalError:
            raise
        except Exception as error:
            if _is_internal(error):
                raise HorovodInternalError(str(error)) from error
            raise

    in_our_words.__name__ = getattr(func, "__name__", "train")
    return run_fn(in_our_words, reset)


def _is_internal(error: BaseException) -> bool:
    """Whether a collective has failed, inside of whatever compiled step."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, HorovodInternalError) or _MARK in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


class KerasState(ObjectState):
    """State of a model, of its optimizer, and of plain objects beside them."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        """Begin with these.

        Args:
            model: which has been built.
            optimizer: None for that of the model; its variables are made if there are none.
            backend: taken for compatibility.
            kwargs: plain objects, such as `epoch` and `batch`, which become attributes.

        Raises:
            ValueError: the model has not been built.
        """
        del backend
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if self.optimizer is not None:
            build_optimizer(self.optimizer, model.trainable_variables)
        self._values: list[Any] = []
        self._save_variables()
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def _variables(self) -> list[Any]:
        of_optimizer = [] if self.optimizer is None else optimizer_variables(self.optimizer)
        return [*self.model.variables, *of_optimizer]

    def _save_variables(self) -> None:
        sync_state(self.model)
        self._values = [np.array(to_numpy(variable)) for variable in self._variables()]

    def save(self) -> None:
        """See `State`."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """See `State`."""
        for variable, value in zip(self._variables(), self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """See `State`."""
        broadcast_variables(self._variables(), 0)
        self._save_variables()
        super().sync()


#: Its name in `horovod.tensorflow.elastic`.
TensorFlowKerasState = KerasState


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state every so many batches, and at the end of every epoch.  Stands last in the list."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """Prepare."""
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """Count anew."""
        del logs
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Commit, if it is time."""
        del batch, logs
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commit."""
        del epoch, logs
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.batch`, the batches of this epoch that are done.

    Keras 3 does not let a callback shorten an epoch: to go on where the last commit was, give `fit` the steps that are left.
    """

    def __init__(self, state: Any) -> None:
        """Prepare."""
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Count."""
        del logs
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Begin anew."""
        del epoch, logs
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.epoch`, the epochs that are done."""

    def __init__(self, state: Any) -> None:
        """Prepare."""
        super().__init__()
        self.state = state
        self.initial_epoch = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Note how many were done before."""
        del logs
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Count."""
        del logs
        self.state.epoch = self.initial_epoch + epoch + 1


__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "reset",
    "run",
]
