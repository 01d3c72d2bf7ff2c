"""Callbacks for `fit`: all ranks begin alike, and speak with one voice about metrics and the learning rate."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.arguments import Min
from ..core.variable_names import VariableSet
from ..torch import basics, reduce_operations
from ..torch.arrays import array_to_tensor
from ..torch.functions import allgather_object
from .library import build_optimizer, is_variable, keras, optimizer_variables, to_numpy
from .values import average_of, broadcast_variables

_log = logging.getLogger("tlkit.runtime")

Logs = dict[str, Any] | None


def sync_state(model: Any) -> None:
    """On JAX: have the variables say what the training has come to, and the training take what they are set to."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None and getattr(model, "_jax_state", None) is not None:
        sync()


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """All ranks take the variables of model and optimizer from one of them.

    Before the first step where all ranks have built their models, which spares a step with different values; else, as Horovod
    does, after the first batch, when everything has been made.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """Prepare.

        Args:
            root_rank: whose values all take.
            device: taken for compatibility.
            local_variables: a variable, or several, that keep their values.

        Raises:
            ValueError: something else is among `local_variables`.
        """
        super().__init__()
        del device
        self.root_rank = root_rank
        self.broadcast_done = False
        self._checked = False
        self._local = VariableSet()
        given = (
            [] if local_variables is None else [local_variables] if is_variable(local_variables) else local_variables
        )
        try:
            each = list(given)
        except TypeError:
            each = [None]
        if not all(is_variable(variable) for variable in each):
            raise ValueError("All local variables must be of tf.Variable type.")
        for variable in each:
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Have a variable keep its value."""
        self._local.add(var)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcast, if all ranks can."""
        del logs
        if self.broadcast_done or basics.size() == 1:
            return
        model = self.model
        optimizer: Any = getattr(model, "optimizer", None)
        mine = np.array([bool(model.built and optimizer is not None)], dtype=np.int32)
        can = reduce_operations.allreduce(array_to_tensor(mine), name="model_is_built", op=Min)
        if not int(can.item()):
            return
        build_optimizer(optimizer, model.trainable_variables)
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Broadcast after the first batch, if that was not done before; after the next one see whether it has held."""
        del batch, logs
        if basics.size() == 1:
            return
        if not self.broadcast_done:
            sync_state(self.model)
            self._broadcast()
        elif not self._checked:
            self._checked = True
            self._check()

    def _broadcast(self) -> None:
        # A generator of random numbers keeps its state, or all ranks would drop the same units.
        random = VariableSet(
            variable
            for variable in self.model.variables
            if getattr(variable, "path", "").endswith("seed_generator_state")
        )
        wanted = [*self.model.variables, *optimizer_variables(self.model.optimizer)]
        kept = [variable for variable in wanted if variable not in self._local and variable not in random]
        broadcast_variables(kept, self.root_rank)
        self.broadcast_done = True

    def _check(self) -> None:
        """Say so if the ranks' models go apart: their gradients are not reduced."""
        optimizer = self.model.optimizer
        if not getattr(optimizer, "_tlkit_distributed", False):
            return
        sync_state(self.model)
        reducer = optimizer._reducer  # noqa: SLF001  ours
        shared = [v for v in self.model.trainable_variables if v not in self._local and v not in reducer.local]
        total = sum(float(np.abs(to_numpy(v).astype(np.float64)).sum()) for v in shared)
        totals = allgather_object(total, name="weights_check")
        members = [totals[rank] for rank in _members(optimizer)]
        if not np.allclose(members, members[0], rtol=1e-4, equal_nan=True):
            _log.error(
                "after a step with reduced gradients the ranks have different weights (sums of absolute values %s): this version "
                "of Keras, or this model's train_step, does not come through the optimizer's apply()",
                ", ".join(f"{value:.6g}" for value in totals),
            )


def _members(optimizer: Any) -> list[int]:
    ranks: list[int] = optimizer._arguments["process_set"].ranks or list(range(basics.size()))  # noqa: SLF001
    return ranks


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces the metrics of an epoch by their averages over all ranks.  Stands before callbacks that read them."""

    def __init__(self, device: str = "") -> None:
        """Prepare.

        Args:
            device: taken for compatibility.
        """
        super().__init__()
        del device
        self._warned = False

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Average what all ranks have."""
        del epoch
        if logs is None or basics.size() == 1:
            return
        mine = sorted(
            name for name, value in logs.items() if isinstance(value, (int, float, np.number)) or np.ndim(value) == 0
        )
        of_all = allgather_object(mine, name="metric_names")
        common = [name for name in mine if all(name in names for names in of_all)]
        if not self._warned and any(names != common for names in of_all):
            self._warned = True
            missing = sorted({name for names in of_all for name in names} - set(common))
            _log.warning("not all ranks have the metrics %s, which stay as they are", ", ".join(missing))
        averaged = average_of([float(logs[name]) for name in common], "metrics")
        logs.update(zip(common, averaged, strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies the learning rate by a factor from one epoch to another."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,  # noqa: FBT001, FBT002  Horovod's signature
        momentum_correction: bool = True,  # noqa: FBT001, FBT002
        steps_per_epoch: int | None = None,
    ) -> None:
        """Prepare.

        Args:
            initial_lr: the rate that is multiplied.
            multiplier: a function of the epoch; or a number, to be raised to the power of the epochs since `start_epoch`: 0.1
                means 1, 0.1, 0.01 and so on, not 0.1 throughout.
            start_epoch: the first epoch.
            end_epoch: the one after the last; None for no end.
            staircase: whether the rate changes once an epoch; else with every batch.
            momentum_correction: taken for compatibility: Keras 3 has a constant momentum in its compiled step.
            steps_per_epoch: batches of an epoch, where Keras does not know.

        Raises:
            ValueError: there is no `initial_lr`.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch, self.staircase = start_epoch, end_epoch, staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            factor = multiplier
            self.multiplier = lambda epoch: factor ** (epoch - start_epoch)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Find out what is needed.

        Raises:
            ValueError: the number of steps is not known, or the optimizer has a schedule of its own.
        """
        del logs
        optimizer = self.model.optimizer
        rate = getattr(optimizer, "_learning_rate", None)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                "the optimizer's learning_rate is a LearningRateSchedule, which no callback can set: give it a number"
            )
        momentum = getattr(optimizer, "momentum", 0.0)
        if self.momentum_correction and isinstance(momentum, float) and momentum:
            _log.info("the momentum is not corrected for the learning rate: it is a constant of Keras's compiled step")
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._autodetect_steps_per_epoch()

    def _autodetect_steps_per_epoch(self) -> int:
        params = self.params or {}
        if params.get("steps"):
            return int(params["steps"])
        if params.get("samples") and params.get("batch_size"):
            return int(params["samples"] // params["batch_size"])
        raise ValueError(
            "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter to the "
            f"{type(self).__name__}() constructor or upgrade to the latest version of Keras."
        )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the epoch."""
        del logs
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Set the rate."""
        del logs
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if self.staircase:
            if batch == 0:
                self._set(self.current_epoch)
            return
        assert self.steps_per_epoch is not None
        self._set(self.current_epoch + float(batch) / self.steps_per_epoch)

    def _set(self, epoch: float) -> None:
        sync_state(self.model)
        self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Add the rate to the metrics."""
        del epoch
        if logs is not None:
            sync_state(self.model)
            logs["lr"] = float(to_numpy(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from a rank's share of it to the whole, over some epochs (Goyal et al., arXiv:1706.02677)."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,  # noqa: FBT001, FBT002  Horovod's signature
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Prepare.

        Args:
            initial_lr: where it ends: the rate for one rank, times the number of ranks.
            warmup_epochs: how long it takes.
            momentum_correction: as for the schedule.
            steps_per_epoch: batches of an epoch, where Keras does not know.
            verbose: 1 for a line at the end of it.
        """

        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            size = basics.size()
            # So that the last batch ends at the whole.
            return 1.0 / size * ((epoch + 1.0 / self.steps_per_epoch) * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Add the rate to the metrics, and say when it has reached the whole."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and basics.rank() == 0:
            rate = float(to_numpy(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")  # noqa: T201  as Horovod does


class BestModelCheckpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves the model when it is better than before; whoever uses it sets `filepath` after it was made."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,  # noqa: FBT001, FBT002  Horovod's signature
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        """Prepare (see `keras.callbacks.ModelCheckpoint`)."""
        super().__init__()
        self.filepath: str | None = None
        self._arguments: dict[str, Any] = {
            "monitor": monitor,
            "verbose": verbose,
            "save_weights_only": save_weights_only,
            "mode": mode,
            "save_freq": save_freq,
        }
        self._inner: Any = None

    def _checkpoint(self) -> Any:
        """Keras's own.

        Raises:
            ValueError: `filepath` is not set.
        """
        if self._inner is None:
            if self.filepath is None:
                raise ValueError("BestModelCheckpoint: set filepath before training")
            self._inner = keras.callbacks.ModelCheckpoint(self.filepath, save_best_only=True, **self._arguments)
            self._inner.set_model(self.model)
            self._inner.set_params(self.params)
        return self._inner

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """See Keras's."""
        self._checkpoint().on_train_batch_end(batch, logs)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """See Keras's."""
        self._checkpoint().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See Keras's."""
        self._checkpoint().on_epoch_end(epoch, logs)
