"""Training with the tape of horovod.tensorflow: after 20 steps the parameters are those of one process with the whole batch."""

import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from tests.frameworks.job import make_checks
from tlkit.runtime.tensorflow.gradients import Gradients, make_settings

STEPS, ROWS, WORDS = 20, 8, 50

hvd.init(process_sets="dynamic")
rank, size = hvd.rank(), hvd.size()
random = np.random.default_rng(7)
INPUTS = random.normal(size=(STEPS, ROWS, 6)).astype(np.float32)
TARGETS = random.normal(size=(STEPS, ROWS, 1)).astype(np.float32)
TOKENS = random.integers(0, WORDS, size=(STEPS, ROWS, 3))


def mine(batches, members=None, place=None):
    """A rank's rows of every batch."""
    members, place = members or size, rank if place is None else place
    share = ROWS // members
    return batches[:, place * share : (place + 1) * share]


class Net:
    """Two layers, and the rows of a table."""

    def __init__(self, shift=0.0):
        made = np.random.default_rng(3)
        self.table = tf.Variable(made.normal(size=(WORDS, 4)).astype(np.float32) + shift, name="table")
        self.hidden = tf.Variable(made.normal(size=(10, 8)).astype(np.float32) + shift, name="hidden")
        self.out = tf.Variable(made.normal(size=(8, 1)).astype(np.float32) + shift, name="out")
        self.unused = tf.Variable(1.0, name="unused")
        self.variables = [self.table, self.hidden, self.out, self.unused]

    def loss(self, x, tokens, y):
        words = tf.reduce_mean(tf.gather(self.table, tokens), axis=1)
        hidden = tf.tanh(tf.concat([x, words], axis=1) @ self.hidden)
        return tf.reduce_mean((hidden @ self.out - y) ** 2)


def train(net, wrap, x, tokens, y, *, traced, process_set=None):
    def step(x, tokens, y):
        with tf.GradientTape() as tape:
            loss = net.loss(x, tokens, y)
        for variable, gradient in zip(net.variables, wrap(tape).gradient(loss, net.variables), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(0.05 * gradient.values, gradient.indices))
            elif gradient is not None:
                variable.assign_sub(0.05 * gradient)
        return loss

    step = tf.function(step) if traced else step
    for number in range(STEPS):
        step(tf.constant(x[number]), tf.constant(tokens[number]), tf.constant(y[number]))
    return net.variables


def alone():
    return train(Net(), lambda tape: tape, INPUTS, TOKENS, TARGETS, traced=True)


WHOLE = [variable.numpy() for variable in alone()]


def same(variables, what=""):
    for variable, expected in zip(variables, WHOLE, strict=True):
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-4, atol=2e-6, err_msg=f"{what} {variable.name}")


def together(*, traced, **options):
    net = Net(shift=float(rank))
    hvd.broadcast_variables(net.variables, 0)
    options = {name: option(net) if callable(option) else option for name, option in options.items()}
    same(
        train(
            net,
            lambda tape: hvd.DistributedGradientTape(tape, **options),
            mine(INPUTS),
            mine(TOKENS),
            mine(TARGETS),
            traced=traced,
        ),
        f"{options}",
    )


def eagerly():
    together(traced=False)


def in_a_function():
    together(traced=True)


def sparse_as_dense():
    together(traced=True, sparse_as_dense=True)


def in_groups():
    together(traced=True, groups=2)
    together(traced=True, groups=lambda net: [[net.hidden, net.out]])
    together(traced=True, groups=7)


def many_kinds_of_gradients():
    """Small ones travel packed, large ones by themselves; results are those of each by itself, in any groups."""
    shapes = [(300, 70), (5, 3), (), (7,), (0, 4), (90,), (300, 70), (3, 1)]
    dtypes = [tf.float32, tf.float32, tf.float64, tf.float32, tf.float32, tf.float16, tf.float64, tf.float64]
    made = np.random.default_rng(rank)
    values = [tf.constant(made.normal(size=shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    variables = [tf.Variable(tf.zeros_like(value), name=f"v{number}") for number, value in enumerate(values)]
    expected = [hvd.allreduce(value, name=f"alone.{number}").numpy() for number, value in enumerate(values)]

    def reduce(options):
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [tf.reduce_sum(tf.cast(v * value, tf.float64)) for v, value in zip(variables, values, strict=True)]
            )
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)

    for options in ({}, {"groups": 3}, {"groups": [variables[1:4], variables[6:]]}):
        for way in (reduce, tf.function(reduce)):
            for _ in range(3):
                for found, wanted in zip(way(options), expected, strict=True):
                    assert found.shape == wanted.shape
                    if size == 2:  # in whatever memory they lie, two numbers have one sum
                        np.testing.assert_array_equal(found, wanted)
                    coarse = found.dtype == tf.float16
                    np.testing.assert_allclose(
                        found, wanted, rtol=2e-3 if coarse else 1e-5, atol=2e-3 if coarse else 1e-5
                    )


def small_groups():
    """Groups by number that are not worth a collective go along with others; given ones stay."""
    chosen = [tf.Variable(tf.ones([65536])) for _ in range(8)]  # 256 KiB each

    def grouped(groups):
        made = make_settings(
            compression=hvd.Compression.none,
            sparse_as_dense=False,
            op=hvd.Average,
            gradient_predivide_factor=1.0,
            num_groups=0,
            groups=groups,
            process_set=hvd.global_process_set,
            scale_local_gradients=True,
        )
        return Gradients(made).group(list(range(8)), chosen, chosen)

    assert grouped(8) == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert grouped(3) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert grouped([chosen[1:3], chosen[5:6]]) == [[5], [1, 2], [0, 3, 4, 6, 7]]


def groups_in_any_order():
    """Which group's gradients are there first differs between the ranks, in the first step, too."""
    variables = [tf.Variable(tf.zeros([5])), tf.Variable(tf.zeros([9]))]

    def late(x, is_late):
        @tf.custom_gradient
        def same(x):
            def gradient(dy):
                waited = tf.numpy_function(lambda value: (time.sleep(0.5 * is_late), value)[1], [dy], dy.dtype)
                return tf.ensure_shape(waited, dy.shape)

            return tf.identity(x), gradient

        return same(x)

    @tf.function
    def reduce():
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [tf.reduce_sum(late(v, rank % 2 == place) * (place + rank + 1.0)) for place, v in enumerate(variables)]
            )
        return hvd.DistributedGradientTape(tape, groups=[[v] for v in variables]).gradient(loss, variables)

    for _ in range(2):
        for place, found in enumerate(reduce()):
            np.testing.assert_allclose(found, np.full(found.shape, place + (size + 1) / 2))


def a_group_that_fails():
    """Ranks that disagree, if only by one element, hear it where they wait; the other groups end, and the next step is done."""
    variables = [tf.Variable(tf.ones([3])), tf.Variable(tf.ones([20 + rank])), tf.Variable(tf.ones([4]))]

    def reduce(chosen):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * float(rank + 1)) for v in chosen])
        return hvd.DistributedGradientTape(tape, groups=[[v] for v in chosen]).gradient(loss, chosen)

    for way in (tf.function(reduce), reduce):
        try:
            way(variables)
        except tf.errors.OpError as error:
            assert "shape" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        for _ in range(2):
            for found in way(variables[::2]):
                np.testing.assert_allclose(found, np.full(found.shape, (size + 1) / 2))


def predivided():
    together(traced=True, gradient_predivide_factor=2.0)


def in_a_process_set():
    """The first and the last half of the ranks train by themselves, each on whole batches."""
    half = size // 2
    sets = [hvd.add_process_set(list(range(half))), hvd.add_process_set(list(range(half, size)))]
    own = sets[rank >= half]
    place = rank % half
    net = Net(shift=float(rank))
    hvd.broadcast_variables(net.variables, own.ranks[0], process_set=own)
    for variable, made in zip(net.variables, Net(shift=float(own.ranks[0])).variables, strict=True):
        np.testing.assert_array_equal(variable, made)
        variable.assign(variable - (own.ranks[0] if variable is not net.unused else 0.0))
    parts = [mine(batches, half, place) for batches in (INPUTS, TOKENS, TARGETS)]
    same(train(net, lambda tape: hvd.DistributedGradientTape(tape, process_set=own), *parts, traced=True))
    other = sets[rank < half]
    with tf.GradientTape() as tape:
        loss = net.loss(INPUTS[0], TOKENS[0], TARGETS[0])
    outside = hvd.DistributedGradientTape(tape, process_set=other)
    assert len(outside.gradient(loss, net.variables)) == len(net.variables)  # as they are, without waiting for anybody
    try:
        hvd.allreduce(tf.ones([2]), process_set=other)
    except tf.errors.InvalidArgumentError as error:
        assert "not a member" in str(error)
    else:
        raise AssertionError("nothing was raised")
    hvd.barrier()
    for each in sets:
        assert hvd.remove_process_set(each)
    try:
        hvd.allreduce(tf.ones([2]), process_set=own)
    except ValueError as error:
        assert "registered" in str(error)
    else:
        raise AssertionError("nothing was raised")


def structures():
    a, b, c = tf.Variable(2.0), tf.Variable([1.0, 3.0]), tf.Variable(5.0)

    def losses(tape_class):
        with tape_class(tf.GradientTape(persistent=True)) as tape:
            loss = (a * a + tf.reduce_sum(b)) * float(rank + 1)
        return tape, loss

    tape, loss = losses(hvd.DistributedGradientTape)
    assert isinstance(tape, tf.GradientTape)
    assert type(tape).__name__ == "GradientTape"
    mean = (size + 1) / 2
    single = tape.gradient(loss, a)
    np.testing.assert_allclose(single, 4 * mean)
    nested = tape.gradient(loss, {"a": a, "rest": [b, c]})
    np.testing.assert_allclose(nested["a"], 4 * mean)
    np.testing.assert_allclose(nested["rest"][0], [mean, mean])
    assert nested["rest"][1] is None
    zeros = tape.gradient(loss, [c], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zeros[0].numpy() == 0.0
    named = tape.gradient(loss, [a, b], use_generic_names=True)
    np.testing.assert_allclose(named[0], 4 * mean)


def local_sources():
    a, b, watched = tf.Variable(2.0), tf.Variable(3.0), tf.constant(4.0)
    for scaled in (True, False):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(watched)
            loss = (a + b + watched) * float(rank + 1)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scaled)
        tape.register_local_source(b)
        tape.register_local_source(watched)
        own = (rank + 1) / (size if scaled else 1)
        found = tape.gradient(loss, [a, b, watched])
        np.testing.assert_allclose(found, [(size + 1) / 2, own, own], rtol=1e-6)
        local, shared = tape.get_local_and_global_gradients(loss, [a, b])
        assert [source is b for source, _ in local] == [True]
        np.testing.assert_allclose(local[0][1], own, rtol=1e-6)
        np.testing.assert_allclose(shared[0][1], (size + 1) / 2, rtol=1e-6)


def local_layers():
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(3), tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input((4,)), *layers])
    x = tf.ones([2, 4]) * float(rank + 1)
    for count in range(3):
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(model(x))
        own = tape.gradient(loss, model.trainable_weights)
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers[:count])
        local = {id(v) for layer in layers[:count] for v in layer.trainable_weights}
        for v, plain, made in zip(
            model.trainable_weights, own, tape.gradient(loss, model.trainable_weights), strict=True
        ):
            expected = plain / size if id(v) in local else hvd.allreduce(plain)
            np.testing.assert_allclose(made, expected, rtol=1e-5)
    try:
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[1])
    except ValueError as error:
        assert str(error) == "All local layers must be of tf.keras.layers.Layer type."
    else:
        raise AssertionError("nothing was raised")


def names_that_differ():
    """A rank that has made more layers before calls its own otherwise; the gradients find each other all the same."""
    for _ in range(rank):
        tf.keras.layers.Dense(2)
    layer = tf.keras.layers.Dense(2)
    layer.build((None, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 3]) * float(rank + 1)))
    found = hvd.DistributedGradientTape(tape).gradient(loss, layer.trainable_weights)
    np.testing.assert_allclose(found[0], np.full([3, 2], (size + 1) / 2), rtol=1e-6)


def wrong_arguments():
    for options in (
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        {"groups": 0},
        {"groups": 3.5},
        {"groups": [[1, 2], 3]},
    ):
        try:
            hvd.DistributedGradientTape(tf.GradientTape(), **options)
        except ValueError:
            continue
        raise AssertionError(options)


def synchronised_batch_norm():
    x = np.random.default_rng(5).normal(size=(4 * size + 1, 3)).astype(np.float32)
    rows = np.arange(len(x)) % size == rank  # the ranks have different numbers of rows
    ours, plain = hvd.SyncBatchNormalization(momentum=0.5), tf.keras.layers.BatchNormalization(momentum=0.5)
    for way in (lambda f: f, tf.function):
        with tf.GradientTape() as tape:
            mine_in = tf.constant(x[rows])
            tape.watch(mine_in)
            out = way(lambda v: ours(v, training=True))(mine_in)
            loss = tf.reduce_sum(out**3)
        with tf.GradientTape() as whole:
            everything = tf.constant(x)
            whole.watch(everything)
            expected = plain(everything, training=True)
            total = tf.reduce_sum(expected**3)
        np.testing.assert_allclose(out, expected.numpy()[rows], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            tape.gradient(loss, mine_in), whole.gradient(total, everything).numpy()[rows], rtol=2e-2, atol=1e-3
        )
    np.testing.assert_allclose(ours.moving_mean, plain.moving_mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.moving_variance, plain.moving_variance, rtol=1e-4, atol=1e-6)
    try:
        hvd.SyncBatchNormalization(fused=True)
    except ValueError as error:
        assert "does not support fused=True" in str(error)
    else:
        raise AssertionError("nothing was raised")


def elastic_state():
    variables = [tf.Variable([float(rank), 1.0]), tf.Variable(float(rank))]
    state = hvd.elastic.TensorFlowState(variables, epoch=rank)
    state.sync()
    assert variables[0].numpy().tolist() == [0.0, 1.0]
    assert state.epoch == 0
    variables[1].assign(7.0)
    state.epoch = 3
    state.restore()
    assert (variables[1].numpy(), state.epoch) == (0.0, 0)
    variables[1].assign(7.0)
    state.epoch = 3
    state.commit()
    variables[1].assign(8.0)
    state.restore()
    assert (variables[1].numpy(), state.epoch) == (7.0, 3)


make_checks(
    {
        check.__name__: check
        for check in (
            eagerly,
            in_a_function,
            sparse_as_dense,
            in_groups,
            many_kinds_of_gradients,
            small_groups,
            groups_in_any_order,
            a_group_that_fails,
            predivided,
            in_a_process_set,
            structures,
            local_sources,
            local_layers,
            names_that_differ,
            wrong_arguments,
            synchronised_batch_norm,
            elastic_state,
        )
    }
)
