"""The operations of horovod.tensorflow, eagerly and in graphs."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from tests.frameworks.job import make_checks

hvd.init()
rank, size = hvd.rank(), hvd.size()
RANKS = range(size)
REDUCIBLE = [tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64]
MOVABLE = [*REDUCIBLE, tf.uint16, tf.int16, tf.bool]


def both_ways(function, *inputs):
    """What a function yields eagerly and in a graph, which has to be the same."""
    eager, traced = function(*inputs), tf.function(function)(*inputs)
    for one, other in zip(tf.nest.flatten(eager), tf.nest.flatten(traced), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(as_numbers(one), as_numbers(other))
    return eager


def as_numbers(value):
    return np.asarray(tf.cast(value, tf.float64))


def refused(function, *kinds):
    """The error of a call that has to fail."""
    try:
        function()
    except kinds as error:
        return str(error)
    raise AssertionError("nothing was raised")


def of_rank(shape, dtype, number):
    return tf.cast(tf.reshape(tf.range(int(np.prod(shape))) % 5, shape) + number + 1, dtype)


def queries():
    assert (hvd.size_op().numpy(), hvd.rank_op().numpy()) == (size, rank)
    assert both_ways(lambda: hvd.local_size_op()) == hvd.local_size()
    assert both_ways(lambda: hvd.local_rank_op()) == hvd.local_rank()
    assert hvd.process_set_included_op().numpy() == 1
    assert hvd.process_set_included_op(77).numpy() == -2


def allreduce():
    for dtype in REDUCIBLE:
        for shape in ([], [17], [3, 4], [2, 3, 4], [0, 3]):
            total = sum(as_numbers(of_rank(shape, dtype, r)) for r in RANKS)
            summed = both_ways(lambda x: hvd.allreduce(x, op=hvd.Sum), of_rank(shape, dtype, rank))
            assert summed.dtype == dtype
            assert summed.shape == shape
            np.testing.assert_allclose(as_numbers(summed), total, rtol=1e-2 if dtype.size < 4 else 1e-6)
    x = of_rank([17], tf.float32, rank)
    values = np.stack([as_numbers(of_rank([17], tf.float32, r)) for r in RANKS])
    for op, expected in (
        (hvd.Average, values.mean(0)),
        (hvd.Min, values.min(0)),
        (hvd.Max, values.max(0)),
        (hvd.Product, values.prod(0)),
    ):
        np.testing.assert_allclose(both_ways(lambda x, op=op: hvd.allreduce(x, op=op), x), expected, rtol=1e-6)
    np.testing.assert_allclose(
        hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), values.sum(0) * 1.5, rtol=1e-6
    )
    truncated = hvd.allreduce(tf.constant([5, -5]) if rank == 0 else tf.constant([0, 0]), op=hvd.Average)
    np.testing.assert_array_equal(truncated, [5 // size, -(5 // size)])


def allreduce_of_anything():
    expected = sum(RANKS) + size
    for value in ([float(rank + 1)], np.array([rank + 1.0]), tf.Variable([rank + 1.0])):
        assert hvd.allreduce(value, op=hvd.Sum).numpy().tolist() == [expected]


def grouped():
    tensors = [of_rank([n], dtype, rank) for n, dtype in ((3, tf.float32), (5, tf.float64), (1, tf.int32))]
    summed = both_ways(lambda *t: hvd.grouped_allreduce(list(t), op=hvd.Sum), *tensors)
    for tensor, total in zip(tensors, summed, strict=True):
        expected = sum(as_numbers(tensor) - rank + r for r in RANKS)
        np.testing.assert_array_equal(as_numbers(total), expected)
    assert hvd.grouped_allreduce([]) == []
    gathered = both_ways(lambda *t: hvd.grouped_allgather(list(t)), tf.fill([rank + 1], rank), tf.fill([2, 2], rank))
    assert gathered[0].numpy().tolist() == [r for r in RANKS for _ in range(r + 1)]
    scattered = both_ways(
        lambda *t: hvd.grouped_reducescatter(list(t), op=hvd.Sum), tf.ones([2 * size]), tf.ones([size + 1, 2])
    )
    assert scattered[0].numpy().tolist() == [size] * 2
    assert scattered[1].shape[0] == 1 + (rank == 0)


def slices():
    def make():
        return tf.IndexedSlices(tf.fill([rank + 1, 2], float(rank + 1)), tf.range(rank + 1), tf.constant([7, 2]))

    dense = np.zeros([7, 2])
    for r in RANKS:
        dense[: r + 1] += r + 1
    for op, factor in ((hvd.Sum, 1), (hvd.Average, size)):
        reduced = hvd.allreduce(make(), op=op)
        np.testing.assert_allclose(tf.convert_to_tensor(reduced), dense / factor, rtol=1e-6)
        traced = tf.function(lambda op=op: tf.convert_to_tensor(hvd.allreduce(make(), op=op)))()
        np.testing.assert_allclose(traced, dense / factor, rtol=1e-6)
    mixed = hvd.grouped_allreduce([tf.ones([2]), make(), tf.ones([3])], op=hvd.Sum)
    assert isinstance(mixed[1], tf.IndexedSlices)
    assert mixed[1].dense_shape.numpy().tolist() == [7, 2]
    assert mixed[2].numpy().tolist() == [size] * 3
    refused(lambda: hvd.allreduce(make(), op=hvd.Max), NotImplementedError)
    refused(lambda: hvd.allreduce(make(), prescale_factor=2.0), NotImplementedError)
    assert "sparse_as_dense" in refused(lambda: hvd.allreduce(make(), op=hvd.Adasum), NotImplementedError)


def gathering():
    for dtype in MOVABLE:
        mine = of_rank([rank, 2], dtype, rank)
        everything = np.concatenate([as_numbers(of_rank([r, 2], dtype, r)) for r in RANKS])
        gathered = both_ways(hvd.allgather, mine)
        assert gathered.dtype == dtype
        np.testing.assert_array_equal(as_numbers(gathered), everything)
        for root in RANKS:
            copied = both_ways(lambda x, root=root: hvd.broadcast(x, root), of_rank([2, 3], dtype, rank))
            np.testing.assert_array_equal(as_numbers(copied), as_numbers(of_rank([2, 3], dtype, root)))
    assert hvd.broadcast(float(rank), size - 1).numpy() == size - 1


def exchange():
    splits = [r + 1 for r in RANKS]
    rows = tf.repeat(tf.range(size), splits) + 100 * rank
    output, received = both_ways(lambda x: hvd.alltoall(x, splits=tf.constant(splits)), rows)
    assert received.numpy().tolist() == [rank + 1] * size
    assert output.numpy().tolist() == [rank + 100 * r for r in RANKS for _ in range(rank + 1)]
    equal = both_ways(hvd.alltoall, tf.range(2 * size) + 100 * rank)
    assert equal.numpy().tolist() == [2 * rank + i + 100 * r for r in RANKS for i in range(2)]
    wide = hvd.alltoall(tf.range(size), splits=tf.constant([1] * size, tf.int64))
    assert wide[0].numpy().tolist() == [rank] * size
    for bad in (
        lambda: hvd.alltoall(tf.ones([size + 1])),
        lambda: hvd.alltoall(tf.ones([4]), splits=[1] * (size + 1)),
        lambda: hvd.alltoall(tf.ones([1]), splits=[5] * size),
    ):
        refused(bad, tf.errors.InvalidArgumentError)


def scatter():
    rows = tf.reshape(tf.range(float(size * 2 + 1)), [-1, 1]) + float(rank)
    mine = both_ways(lambda x: hvd.reducescatter(x, op=hvd.Sum), rows)
    shares = [2 + (r == 0) for r in RANKS]
    start = sum(shares[:rank])
    expected = [size * (start + i) + sum(RANKS) for i in range(shares[rank])]
    assert mine.numpy().ravel().tolist() == expected
    refused(lambda: hvd.reducescatter(tf.constant(1.0)), ValueError)


def gradients():
    def gradient(function, x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x), tape.gradient(y, x)

    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    cases = {
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), np.full([2, 2], size)),
        "average": (lambda x: hvd.allreduce(x), np.ones([2, 2])),
        "group": (lambda x: sum(hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)), np.full([2, 2], 3 * size)),
        "gather": (lambda x: hvd.allgather(x) * float(rank + 1), np.full([2, 2], (size + 1) / 2)),
        "broadcast": (lambda x: hvd.broadcast(x, 0), np.full([2, 2], 1.0 if rank == 0 else 0.0)),
        "scatter of a sum": (
            lambda x: hvd.reducescatter(tf.repeat(x, size, 0), op=hvd.Sum),
            np.full([2, 2], size * size),
        ),
    }
    for name, (function, expected) in cases.items():
        for way in (gradient, tf.function(gradient)):
            for made in way(function, x):
                np.testing.assert_allclose(made, expected, rtol=1e-6, err_msg=name)
    splits = tf.constant([1] * size)

    def exchanged(x):
        return hvd.alltoall(x, splits=splits)[0] * float(rank + 1)

    rows = tf.ones([size + 1, 2])
    for way in (gradient, tf.function(gradient)):
        expected = np.concatenate([np.full([1, 2], r + 1.0) for r in RANKS] + [np.zeros([1, 2])])
        for made in way(exchanged, rows):
            np.testing.assert_allclose(made, expected)


def shapes_are_static():
    @tf.function
    def shapes(x):
        found = [hvd.allreduce(x).shape, hvd.broadcast(x, 0).shape, hvd.allgather(x).shape, hvd.reducescatter(x).shape]
        output, received = hvd.alltoall(x, splits=[4 // size] * size)
        assert [list(shape) for shape in found] == [[4, 3], [4, 3], [None, 3], [None, 3]]
        assert list(output.shape) == [None, 3]
        assert list(received.shape) == [size]
        return found[0]

    shapes(tf.ones([4, 3]))


def errors():
    wrong = refused(lambda: hvd.allreduce(tf.ones([rank + 1]), name="shapes"), tf.errors.FailedPreconditionError)
    assert "Mismatched ALLREDUCE tensor shapes" in wrong
    refused(
        lambda: hvd.allreduce(tf.ones([2], tf.float32 if rank else tf.float64), name="types"),
        tf.errors.FailedPreconditionError,
    )
    refused(lambda: hvd.allgather(tf.constant(1.0)), tf.errors.InvalidArgumentError, ValueError)
    refused(lambda: hvd.broadcast(tf.ones([2]), rank % 2, name="roots"), tf.errors.FailedPreconditionError)
    refused(lambda: hvd.allreduce(tf.complex(1.0, 1.0)), TypeError)
    refused(lambda: hvd.allreduce(tf.ones([2]), average=True, op=hvd.Sum), ValueError)
    graph = tf.function(lambda: hvd.allreduce(tf.ones([rank + 1]), name="in a graph"))
    assert "Mismatched ALLREDUCE" in refused(graph, tf.errors.UnknownError, tf.errors.FailedPreconditionError)
    assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == size  # it goes on


def xla_is_refused():
    said = refused(lambda: tf.function(hvd.allreduce, jit_compile=True)(tf.ones([2])), NotImplementedError)
    assert "jit_compile" in said


def compression():
    for dtype in (tf.float16, tf.float32, tf.float64):
        x = tf.cast(tf.constant([0.5, 1.5]) + rank, dtype)
        packed, context = hvd.Compression.fp16.compress(x)
        assert packed.dtype == tf.float16
        assert hvd.Compression.fp16.decompress(packed, context).dtype == dtype
        reduced = hvd.allreduce(x, compression=hvd.Compression.fp16)
        assert reduced.dtype == dtype
        np.testing.assert_allclose(as_numbers(reduced), np.array([0.5, 1.5]) + (size - 1) / 2, rtol=1e-2)
    assert hvd.Compression.fp16.compress(tf.constant([1]))[0].dtype == tf.int32


def variables_and_objects():
    variables = [tf.Variable(tf.fill([3], float(rank))), tf.Variable(tf.fill([2], rank))]
    hvd.broadcast_variables(variables, size - 1)
    assert [v.numpy().tolist() for v in variables] == [[size - 1.0] * 3, [size - 1] * 2]
    values = hvd.broadcast_([tf.Variable(float(rank)), tf.Variable(True)], 0)
    assert values[0].numpy() == 0.0
    assert hvd.broadcast_object({"hello": 123, 0: [1, 2]} if rank == 0 else None) == {"hello": 123, 0: [1, 2]}
    assert hvd.allgather_object({"rank": rank}) == [{"rank": r} for r in RANKS]
    refused(lambda: hvd.broadcast_global_variables(0), RuntimeError)


def private_names():
    from horovod.tensorflow.functions import broadcast_object_fn  # noqa: F401
    from horovod.tensorflow.mpi_ops import _basics, _normalize_name
    from horovod.tensorflow.util import _executing_eagerly

    assert _executing_eagerly()
    assert _basics.size() == size
    assert _normalize_name("a/b:0") == "a_b_0"
    ones = tf.ones([size])
    assert hvd._allreduce(ones, name="private").numpy().tolist() == [size] * size
    assert hvd._grouped_allreduce([ones, ones])[1].numpy().tolist() == [size] * size
    assert hvd._reducescatter(ones).numpy().tolist() == [size]
    assert hvd._grouped_reducescatter([ones])[0].numpy().tolist() == [size]
    reduce = hvd._make_allreduce_grads_fn("grads", "", "", op=hvd.Average)
    made, none = reduce([ones * (rank + 1.0), None], [tf.Variable(ones), tf.Variable(1.0)])
    np.testing.assert_allclose(made, [(size + 1) / 2] * size)
    assert none is None


def first_graphs():
    with tf.Graph().as_default():
        tensors = [hvd.allreduce(tf.fill([2], float(number + rank)), op=hvd.Sum) for number in range(6)]
        variable = tf.compat.v1.get_variable("v", initializer=float(rank))
        both = hvd.broadcast_global_variables(size - 1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found = session.run(tensors)
            session.run(both)
            assert session.run(variable) == size - 1
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
        update = optimizer.minimize(variable * float(rank + 1))
        with tf.compat.v1.train.MonitoredSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
            session.run(update)
            np.testing.assert_allclose(session.run(variable), -0.5 * (size + 1) / 2, rtol=1e-6)
    for number, total in enumerate(found):
        assert total.tolist() == [sum(number + r for r in RANKS)] * 2


def joining():
    if rank == 0:
        # The others bring zeros.
        assert hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="alone").numpy().tolist() == [1.0, 1.0]
    assert hvd.join().numpy() == 0


def the_end():
    hvd.shutdown()
    assert "not been initialized" in refused(lambda: hvd.allreduce(tf.ones([2])), tf.errors.FailedPreconditionError)


make_checks(
    {
        check.__name__: check
        for check in (
            queries,
            allreduce,
            allreduce_of_anything,
            grouped,
            slices,
            gathering,
            exchange,
            scatter,
            gradients,
            shapes_are_static,
            errors,
            xla_is_refused,
            compression,
            variables_and_objects,
            private_names,
            first_graphs,
            joining,
            the_end,
        )
    }
)
