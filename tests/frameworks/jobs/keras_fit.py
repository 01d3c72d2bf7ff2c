"""Training with Keras's `fit`, on whatever backend: parameters, callbacks, files, elastic state."""

import tempfile

import horovod.keras as hvd
import keras
import numpy as np

from tests.frameworks.job import make_checks

STEPS, ROWS = 20, 8

hvd.init()
rank, size = hvd.rank(), hvd.size()
random = np.random.default_rng(0)
INPUTS = random.normal(size=(STEPS * ROWS, 6)).astype("float32")
TOKENS = random.integers(0, 30, size=(STEPS * ROWS, 3))
TARGETS = random.normal(size=(STEPS * ROWS, 1)).astype("float32")
SHARE = ROWS // size
MINE = np.concatenate(
    [np.arange(step * ROWS + rank * SHARE, step * ROWS + (rank + 1) * SHARE) for step in range(STEPS)]
)


def make_model(optimizer, seed=0, **options):
    keras.utils.set_random_seed(seed)
    numbers, tokens = keras.Input((6,)), keras.Input((3,), dtype="int32")
    words = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(30, 4)(tokens))
    hidden = keras.layers.Dense(8, activation="tanh")(keras.layers.Concatenate()([numbers, words]))
    model = keras.Model([numbers, tokens], keras.layers.Dense(1)(hidden))
    model.compile(optimizer, loss="mse", **options)
    return model


def fit(model, rows, batch, **options):
    return model.fit([INPUTS[rows], TOKENS[rows]], TARGETS[rows], batch_size=batch, shuffle=False, verbose=0, **options)


def adam():
    return keras.optimizers.Adam(0.01)


whole = make_model(adam())
fit(whole, np.arange(len(INPUTS)), ROWS)
WHOLE = [np.array(weight) for weight in whole.get_weights()]


def same(model, rtol=2e-4, atol=5e-6):
    for mine, expected in zip(model.get_weights(), WHOLE, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=rtol, atol=atol)


def parameters():
    """After 20 steps with parts of the batches: those of one process with the whole batches."""
    optimizer = hvd.DistributedOptimizer(adam())
    model = make_model(optimizer, seed=0)
    if rank:
        model.set_weights([weight + rank for weight in model.get_weights()])
    history = fit(
        model,
        MINE,
        SHARE,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
    )
    same(model)
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert type(optimizer).__name__ == "Adam"
    assert int(optimizer.iterations) == STEPS
    losses = hvd.allgather_object(history.history["loss"])
    assert all(loss == losses[0] for loss in losses)


def config_is_kept():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9))
    for again in (type(optimizer).from_config(optimizer.get_config()), optimizer.from_config(optimizer.get_config())):
        assert again.get_config() == optimizer.get_config()
        assert again._tlkit_distributed
    built = adam()
    built.build([keras.Variable(np.ones(2, "float32"))])
    built.iterations.assign(5)
    assert int(hvd.DistributedOptimizer(built).iterations) == 5
    again = hvd.DistributedOptimizer(built)
    assert len(again.variables()) == len(again.variables) > 2


def sums():
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.apply([keras.ops.ones(3) * (rank + 1.0)], [variable])
    np.testing.assert_allclose(np.array(variable), -sum(range(1, size + 1)))
    for op in (hvd.Adasum, hvd.Max):
        try:
            hvd.DistributedOptimizer(adam(), op=op)
        except ValueError as error:
            assert str(error) == "op currently only supports Average and Sum"
        else:
            raise AssertionError("nothing was raised")


def several_passes():
    """As many updates as there are whole groups of passes, each with their sum; and no rest is forgotten."""
    for average in (False, True):
        variable, local = (keras.Variable(np.zeros(2, "float32")) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=4, average_aggregated_gradients=average
        )
        optimizer.register_local_var(local)
        for number in range(10):
            one = keras.ops.ones(2) * (rank + 1.0)
            optimizer.apply([one, one * (number + 1)], [variable, local])
        passes = 1 if average else 4
        mean = (size + 1) / 2
        np.testing.assert_allclose(np.array(variable), -2 * passes * mean, rtol=1e-6)
        np.testing.assert_allclose(np.array(local), -36 / (4 / passes) * (rank + 1) / size, rtol=1e-6)
        assert int(optimizer._agg_helper.counter) == 2
        assert int(optimizer.iterations) == 10
    # The step of the schedule, and of Adam's bias, goes on with every pass: a plain optimizer shows that nothing else differs.
    if SHARE >= 2:
        passes = 2
        once = make_model(keras.optimizers.SGD(0.1))
        fit(once, np.arange(len(INPUTS)), ROWS)
        wrapped = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1),
            backward_passes_per_step=passes,
            average_aggregated_gradients=True,
            sparse_as_dense=True,
        )
        parts = make_model(wrapped)
        fit(parts, MINE, SHARE // passes)
        for mine, expected in zip(parts.get_weights(), once.get_weights(), strict=True):
            np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=5e-6)
        assert int(wrapped.iterations) == passes * STEPS


def infinite_gradients_are_gone():
    variable = keras.Variable(np.zeros(1, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    for value in (np.inf, 1.0):
        optimizer.apply([keras.ops.convert_to_tensor(np.array([value], "float32"))], [variable])
    assert not np.isfinite(np.array(variable)).all()
    variable.assign(np.zeros(1, "float32"))
    for value in (1.0, 1.0):
        optimizer.apply([keras.ops.convert_to_tensor(np.array([value], "float32"))], [variable])
    np.testing.assert_allclose(np.array(variable), -2.0)


def files():
    """What a wrapped model saves loads as the plain optimizer, and with the wrapper; nothing is lost."""
    for passes in (1, 4):
        model = make_model(hvd.DistributedOptimizer(adam(), backward_passes_per_step=passes, sparse_as_dense=True))
        fit(model, MINE, SHARE)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/{rank}.keras"
            model.save(path)
            plain, ours = keras.models.load_model(path), hvd.load_model(path)
        assert not getattr(plain.optimizer, "_tlkit_distributed", False)
        assert ours.optimizer._tlkit_distributed
        saved = [np.array(variable) for variable in model.optimizer._plain_variables()]
        for loaded in (plain.optimizer, ours.optimizer):
            assert type(loaded).__name__ == "Adam"
            assert len(loaded.variables) == len(saved)
            for variable, expected in zip(loaded.variables, saved, strict=True):
                np.testing.assert_allclose(np.array(variable), expected)
        fit(ours, MINE, SHARE)
        assert int(ours.optimizer.iterations) == 2 * STEPS


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def schedules():
    model = make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    rates = Rates()
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2),
        hvd.callbacks.LearningRateScheduleCallback(0.1 * size, 0.1, start_epoch=2, end_epoch=4),
        hvd.callbacks.LearningRateScheduleCallback(0.1 * size, lambda epoch: 10.0 - epoch, start_epoch=4),
        rates,
    ]
    history = fit(model, MINE[: 5 * SHARE], SHARE, epochs=6, callbacks=callbacks)
    warm = [0.1 * ((number / 5 + 1 / 5) * (size - 1) / 2 + 1) for number in range(10)]
    then = [0.1 * size] * 5 + [0.01 * size] * 5 + [0.6 * size] * 5 + [0.5 * size] * 5
    np.testing.assert_allclose(rates.seen, warm + then, rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], [warm[4], warm[9], *then[::5]], rtol=1e-5)
    for wrong in (
        lambda: hvd.callbacks.LearningRateScheduleCallback(None, 2.0),
        lambda: hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=3),
    ):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("nothing was raised")


def metrics_that_some_lack():
    callback = hvd.callbacks.MetricAverageCallback()
    logs = {"loss": float(rank), "acc": 1.0, **({"own": 5.0} if rank == 0 else {})}
    callback.on_epoch_end(0, logs)
    assert logs["loss"] == (size - 1) / 2
    assert logs.get("own", 5.0) == 5.0


def local_variables_stay():
    model = make_model(adam())
    model.set_weights([weight * 0 + rank for weight in model.get_weights()])
    kept = model.layers[-1].trainable_weights
    model.optimizer = hvd.PartialDistributedOptimizer(adam(), local_layers=model.layers[-1])
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(size - 1, local_variables=kept)
    callback.set_model(model)
    callback.on_train_begin()
    names = {id(variable) for variable in kept}
    for variable in model.trainable_variables:
        np.testing.assert_array_equal(np.array(variable), rank if id(variable) in names else size - 1)


def values():
    assert np.array(hvd.allreduce(float(rank))).item() == (size - 1) / 2
    assert np.array(hvd.broadcast(rank, size - 1)).item() == size - 1
    assert np.array(hvd.allgather(np.array([rank]))).tolist() == list(range(size))
    assert np.array(hvd.reducescatter(np.ones(size, "float32"), op=hvd.Sum)).tolist() == [size]


def elastic_state():
    model = make_model(hvd.DistributedOptimizer(adam()))
    model.set_weights([weight + rank for weight in model.get_weights()])
    state = hvd.elastic.KerasState(model, epoch=rank, batch=0)
    state.sync()
    assert state.epoch == 0
    before = hvd.allgather_object([np.array(weight).sum() for weight in model.get_weights()])
    np.testing.assert_array_equal(before, [before[0]] * size)
    fit(
        model,
        MINE,
        SHARE,
        callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=7),
        ],
    )
    after = [np.array(weight) for weight in model.get_weights()]
    assert (state.epoch, state.batch) == (1, 0)
    model.set_weights([weight * 0 for weight in after])
    state.restore()
    for weight, expected in zip(model.get_weights(), after, strict=True):
        np.testing.assert_array_equal(weight, expected)


def mixed_precision():
    """Ranks with infinities skip a step together: the wrapper is put around what scales the loss."""
    variable = keras.Variable(np.zeros(2, "float32"))
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0), loss="mse")
    optimizer = model.optimizer
    assert optimizer._tlkit_distributed
    assert not getattr(optimizer.inner_optimizer, "_tlkit_distributed", False)

    def apply(gradient):
        if keras.backend.backend() != "jax":
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
            return
        if not optimizer.built:
            optimizer.build([variable])
        state = [v.value for v in optimizer.variables]
        (value,), state = optimizer.stateless_apply(state, [keras.ops.convert_to_tensor(gradient)], [variable.value])
        variable.assign(value)
        for kept, new in zip(optimizer.variables, state, strict=True):
            kept.assign(new)

    apply(np.array([np.inf if rank == 0 else 1.0, 1.0], "float32"))
    assert np.array(variable).tolist() == [0.0, 0.0]
    apply(np.full(2, rank + 1.0, "float32"))
    assert np.array(variable).sum() < 0
    sums = hvd.allgather_object(np.array(variable).tolist())
    assert all(each == sums[0] for each in sums)


def xla():
    if keras.backend.backend() != "tensorflow":
        return
    try:
        make_model(hvd.DistributedOptimizer(adam()), jit_compile=True)
    except ValueError as error:
        assert "model.compile(..., jit_compile=False)" in str(error)
    else:
        raise AssertionError("nothing was raised")
    assert make_model(hvd.DistributedOptimizer(adam())).jit_compile is False


make_checks(
    {
        check.__name__: check
        for check in (
            parameters,
            config_is_kept,
            sums,
            several_passes,
            infinite_gradients_are_gone,
            files,
            schedules,
            metrics_that_some_lack,
            local_variables_stay,
            values,
            elastic_state,
            mixed_precision,
            xla,
        )
    }
)
