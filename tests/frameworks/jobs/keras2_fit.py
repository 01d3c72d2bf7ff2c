"""Training with Keras 2 (tf-keras), as scripts of its time do: both kinds of its optimizers, loops, callbacks, files."""

import tempfile

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

from tests.frameworks.job import make_checks

keras = tf.keras
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


def make_model(optimizer=None, **options):
    keras.utils.set_random_seed(0)
    numbers, tokens = keras.Input((6,)), keras.Input((3,), dtype="int32")
    words = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(30, 4)(tokens))
    hidden = keras.layers.Dense(8, activation="tanh")(keras.layers.Concatenate()([numbers, words]))
    model = keras.Model([numbers, tokens], keras.layers.Dense(1)(hidden))
    if optimizer is not None:
        model.compile(optimizer, loss="mse", **options)
    return model


def fit(model, rows=MINE, batch=SHARE, **options):
    return model.fit([INPUTS[rows], TOKENS[rows]], TARGETS[rows], batch_size=batch, shuffle=False, verbose=0, **options)


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.5, clipnorm=1.0)


def legacy_sgd():
    return keras.optimizers.legacy.SGD(0.1, momentum=0.5, clipnorm=1.0)


KINDS = (lambda: keras.optimizers.Adam(0.01), sgd, lambda: keras.optimizers.legacy.Adam(0.01), legacy_sgd)


def whole(make):
    """What one process with the whole batches comes to."""
    model = make_model(make())
    fit(model, np.arange(len(INPUTS)), ROWS)
    return model.get_weights()


def same(model, expected):
    for mine, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=5e-6)


def this_is_keras_2():
    import tf_keras

    assert keras.Model is tf_keras.Model


def parameters():
    """After 20 steps with parts of the batches: those of one process with the whole batches; clipped when they are reduced."""
    for make in KINDS:
        expected = whole(make)
        optimizer = hvd.DistributedOptimizer(make())
        model = make_model(optimizer)
        if rank:
            model.set_weights([weight + rank for weight in model.get_weights()])
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        history = fit(model, callbacks=callbacks)
        same(model, expected)
        assert isinstance(optimizer, type(make()))
        assert type(optimizer).__name__ == type(make()).__name__
        assert int(optimizer.iterations.numpy()) == STEPS
        losses = hvd.allgather_object(history.history["loss"])
        assert all(loss == losses[0] for loss in losses)


def loops():
    """Own loops, in a graph and eagerly: what the optimizer is handed is reduced; with `minimize`, too; and not if it was."""
    for make in (sgd, legacy_sgd):
        expected = whole(make)
        for compiled in (True, False):
            model, optimizer = make_model(), hvd.DistributedOptimizer(make())
            loss = keras.losses.MeanSquaredError()

            def step(rows, model=model, optimizer=optimizer, loss=loss):
                with tf.GradientTape() as tape:
                    value = loss(rows[2], model(list(rows[:2]), training=True))
                optimizer.minimize(value, model.trainable_variables, tape=tape)

            run = tf.function(step) if compiled else step
            for number in range(STEPS):
                rows = MINE[number * SHARE : (number + 1) * SHARE]
                run((tf.constant(INPUTS[rows]), tf.constant(TOKENS[rows]), tf.constant(TARGETS[rows])))
            same(model, expected)
        variable, optimizer = tf.Variable(0.0), hvd.DistributedOptimizer(type(make())(1.0))
        optimizer.apply_gradients([(tf.constant(rank + 1.0), variable)], experimental_aggregate_gradients=False)
        assert variable.numpy() == -(rank + 1.0)


def sums_and_local_variables():
    for kind in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        shared, local = tf.Variable(np.zeros(3, "float32")), tf.Variable(np.zeros(3, "float32"))
        optimizer = hvd.DistributedOptimizer(kind(1.0), op=hvd.Sum)
        optimizer.register_local_var(local)
        one = tf.ones(3) * (rank + 1.0)
        optimizer.apply_gradients([(one, shared), (one, local)])
        np.testing.assert_allclose(shared.numpy(), -sum(range(1, size + 1)))
        np.testing.assert_allclose(local.numpy(), -(rank + 1) / size)
        optimizer.apply_gradients([])
    try:
        hvd.DistributedOptimizer(object())
    except ValueError as error:
        assert "is not an optimizer of Keras 2." in str(error)
    else:
        raise AssertionError("nothing was raised")


def several_passes():
    """As many updates as there are whole groups of passes, each with their sum; and no rest is forgotten."""
    for kind in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        for average in (False, True):
            variable, local = (tf.Variable(np.zeros(2, "float32")) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                kind(1.0), backward_passes_per_step=4, average_aggregated_gradients=average
            )
            optimizer.register_local_var(local)
            for number in range(10):
                one = tf.ones(2) * (rank + 1.0)
                optimizer.apply_gradients([(one, variable), (one * (number + 1), local)])
            passes = 1 if average else 4
            np.testing.assert_allclose(variable.numpy(), -2 * passes * (size + 1) / 2, rtol=1e-6)
            np.testing.assert_allclose(local.numpy(), -36 / (4 / passes) * (rank + 1) / size, rtol=1e-6)
            assert int(optimizer._agg_helper.counter.numpy()) == 2
            assert int(optimizer.iterations.numpy()) == 10
        expected = whole(lambda kind=kind: kind(0.1))
        wrapped = hvd.DistributedOptimizer(
            kind(0.1), backward_passes_per_step=2, average_aggregated_gradients=True, sparse_as_dense=True
        )
        model = make_model(wrapped)
        fit(model, MINE, SHARE // 2)
        same(model, expected)
        assert int(wrapped.iterations.numpy()) == 2 * STEPS


def files():
    """What a wrapped model saves loads as the plain optimizer, and with the wrapper; nothing is lost."""
    for make in KINDS[::2]:
        model = make_model(hvd.DistributedOptimizer(make()))
        fit(model)
        legacy = isinstance(model.optimizer, keras.optimizers.legacy.Optimizer)
        for suffix in (
            (".h5",) if legacy else (".keras", ".h5")
        ):  # other files do not keep the step of plain optimizers either
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/{rank}{suffix}"
                model.save(path)
                plain, ours = keras.models.load_model(path), hvd.load_model(path)
            assert not getattr(plain.optimizer, "_tlkit_distributed", False)
            assert ours.optimizer._tlkit_distributed
            for loaded in (plain.optimizer, ours.optimizer):
                assert type(loaded).__name__ == "Adam"
                assert int(loaded.iterations.numpy()) == STEPS
            again = fit(ours)
            assert int(ours.optimizer.iterations.numpy()) == 2 * STEPS
            assert np.isfinite(again.history["loss"]).all()
            weights = hvd.allgather_object([weight.tolist() for weight in ours.get_weights()])
            assert all(weight == weights[0] for weight in weights)


def schedules():
    for make in (sgd, legacy_sgd):
        model = make_model(hvd.DistributedOptimizer(make()))
        seen = []

        class Rates(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None, model=model, seen=seen):
                seen.append(float(model.optimizer.learning_rate.numpy()))

        callbacks = [
            hvd.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2),
            hvd.callbacks.LearningRateScheduleCallback(0.1 * size, 0.1, start_epoch=2),
            Rates(),
        ]
        history = fit(model, MINE[: 5 * SHARE], SHARE, epochs=3, callbacks=callbacks)
        warm = [0.1 * ((number / 5 + 1 / 5) * (size - 1) / 2 + 1) for number in range(10)]
        np.testing.assert_allclose(seen, warm + [0.1 * size] * 5, rtol=1e-5)
        np.testing.assert_allclose(history.history["lr"], [warm[4], warm[9], 0.1 * size], rtol=1e-5)
        refused = make_model(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)))
        try:
            fit(refused, callbacks=[hvd.callbacks.LearningRateScheduleCallback(0.1, 0.1)])
        except ValueError as error:
            assert "LearningRateSchedule" in str(error)
        else:
            raise AssertionError("nothing was raised")


def layers_that_stay():
    model = make_model(hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.optimizer = hvd.PartialDistributedOptimizer(sgd(), local_layers=model.layers[-1])
    model.set_weights([weight * 0 + rank for weight in model.get_weights()])
    kept = model.layers[-1].trainable_weights
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(size - 1, local_variables=kept)
    callback.set_model(model)
    callback.on_train_begin()
    names = {id(variable) for variable in kept}
    for variable in model.trainable_variables:
        np.testing.assert_array_equal(variable.numpy(), rank if id(variable) in names else size - 1)


def elastic_state():
    for make in (sgd, legacy_sgd):
        model = make_model(hvd.DistributedOptimizer(make()))
        model.set_weights([weight + rank for weight in model.get_weights()])
        state = hvd.elastic.KerasState(model, epoch=rank, batch=0)
        state.sync()
        assert state.epoch == 0
        callbacks = [
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=7),
        ]
        fit(model, callbacks=callbacks)
        after = model.get_weights()
        assert (state.epoch, state.batch) == (1, 0)
        model.set_weights([weight * 0 for weight in after])
        state.restore()
        same(model, after)


def mixed_precision():
    """Ranks with infinities skip a step together, whoever puts what scales the loss around which."""
    scaled = keras.mixed_precision.LossScaleOptimizer
    for kind in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        for optimizer in (
            scaled(hvd.DistributedOptimizer(kind(1.0)), initial_scale=1.0),
            hvd.DistributedOptimizer(scaled(kind(1.0), initial_scale=1.0)),
        ):
            variable = tf.Variable(np.zeros(2, "float32"))

            @tf.function
            def apply(gradient, optimizer=optimizer, variable=variable):
                optimizer.apply_gradients([(gradient, variable)])

            apply(tf.constant([np.inf if rank == 0 else 1.0, 1.0], tf.float32))
            assert variable.numpy().tolist() == [0.0, 0.0]
            apply(tf.fill([2], rank + 1.0))
            np.testing.assert_allclose(variable.numpy(), -(size + 1) / 2)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = make_model(hvd.DistributedOptimizer(sgd()))
        fit(model)
        assert model.optimizer.inner_optimizer._tlkit_distributed
        weights = hvd.allgather_object([weight.tolist() for weight in model.get_weights()])
        assert all(weight == weights[0] for weight in weights)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def xla():
    try:
        make_model(hvd.DistributedOptimizer(sgd()), jit_compile=True)
    except ValueError as error:
        assert "model.compile(..., jit_compile=False)" in str(error)
    else:
        raise AssertionError("nothing was raised")


make_checks(
    {
        check.__name__: check
        for check in (
            this_is_keras_2,
            parameters,
            loops,
            sums_and_local_variables,
            several_passes,
            files,
            schedules,
            layers_that_stay,
            elastic_state,
            mixed_precision,
            xla,
        )
    }
)
