"""Every operation on real ranks, on every transport, against torch.distributed and against arithmetic."""

import pytest

from .ranks import run_anywhere

#: What is small enough would not come to the transport otherwise (test_small_tensors.py).
BY_TRANSPORT = {"HOROVOD_SMALL_TENSOR_BYTES": "0"}
TRANSPORTS = [("shm", 2), ("shm", 4), ("gloo", 2), ("gloo", 3), ("mpi", 2), ("mpi", 4)]


@pytest.mark.parametrize(("transport", "size"), TRANSPORTS)
def test_results_equal_torch_distributed(transport: str, size: int) -> None:
    """Random shapes, every dtype that both take; half precision up to the order of additions."""
    script = """
    import random, tempfile
    import torch.distributed as dist
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    store = hvd.broadcast_object(tempfile.mktemp(prefix="tlkit-test") if rank == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    chance = random.Random(7)
    dtypes = [torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
    ops = {hvd.Sum: dist.ReduceOp.SUM, hvd.Min: dist.ReduceOp.MIN, hvd.Max: dist.ReduceOp.MAX, hvd.Product: dist.ReduceOp.PRODUCT}
    checked = 0

    def make(shape, dtype):
        torch.manual_seed(1000 * checked + rank)
        return torch.randint(-3, 4, shape).to(dtype) if not dtype.is_floating_point else torch.randn(shape).to(dtype)

    def same(ours, theirs, what):
        global checked
        checked += 1
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (what, ours.shape, theirs.shape)
        loose = ours.dtype in (torch.float16, torch.bfloat16)
        torch.testing.assert_close(ours, theirs, rtol=3e-2 if loose else 1e-6, atol=3e-2 if loose else 1e-6, msg=lambda m: f"{what}: {m}")

    for number in range(12 if size == 2 else 4):
        shape = [chance.randint(0, 5) for _ in range(chance.randint(0, 3))]
        if chance.random() < 0.1:
            shape = [70_000]
        for dtype in dtypes:
            for op, theirs in ops.items():
                x = make(shape, dtype)
                expected = x.clone()
                dist.all_reduce(expected, theirs)
                same(hvd.allreduce(x, op=op), expected, ("allreduce", op, dtype, shape))
        for dtype in [*dtypes, torch.uint8, torch.int8, torch.int16, torch.bool]:
            x = make(shape, dtype)
            root = chance.randrange(size)
            if dtype not in (torch.int16, torch.bool):
                expected = x.clone()
                dist.broadcast(expected, root)
                same(hvd.broadcast(x, root), expected, ("broadcast", dtype, shape))
            rows = [chance.randint(0, 4) for _ in range(size)]
            x = make([rows[rank], *shape[1:]], dtype)
            parts = [None] * size
            dist.all_gather_object(parts, x)
            same(hvd.allgather(x), torch.cat(parts), ("allgather", dtype, rows, shape))
            splits = [[chance.randint(0, 3) for _ in range(size)] for _ in range(size)]
            x = make([sum(splits[rank]), *shape[1:]], dtype)
            sent = [None] * size
            dist.all_gather_object(sent, list(torch.split(x, splits[rank])))
            output, received = hvd.alltoall(x, torch.tensor(splits[rank], dtype=torch.int32))
            same(output, torch.cat([sent[r][rank] for r in range(size)]), ("alltoall", dtype, splits))
            assert received.tolist() == [splits[r][rank] for r in range(size)]
        for dtype in dtypes:
            x = make([chance.randint(0, 7), *shape[1:]], dtype)
            expected = x.clone()
            dist.all_reduce(expected)
            share, rest = divmod(x.shape[0], size)
            rows = [share + (r < rest) for r in range(size)]
            same(hvd.reducescatter(x, op=hvd.Sum), expected.split(rows)[rank], ("reducescatter", dtype, x.shape))
    dist.destroy_process_group()
    hvd.shutdown()
    answer(checked)
    """
    answers = run_anywhere(transport, size, script, BY_TRANSPORT)

    assert len(answers) == size
    assert len({str(count) for count in answers}) == 1
    assert all(isinstance(count, int) and count > (600 if size == 2 else 150) for count in answers)


@pytest.mark.parametrize(("transport", "size"), [("gloo", 2), ("shm", 3), ("mpi", 3)])
def test_groups_scales_averages_and_sparse_tensors(transport: str, size: int) -> None:
    """Grouped operations, prescale and postscale, integer averages, sparse tensors, and what stays untouched."""
    script = """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(size))
    ones = [torch.full((n + 1, 2), float(rank)) for n in range(4)]
    assert [t[0, 0].item() for t in hvd.grouped_allreduce(ones, op=hvd.Sum)] == [total] * 4
    assert isinstance(hvd.grouped_allreduce(ones), list)
    result = hvd.grouped_allreduce_([t.clone() for t in ones], op=hvd.Average)
    assert isinstance(result, tuple) and all(abs(t[0, 0].item() - total / size) < 1e-6 for t in result)
    assert all((t == rank).all() for t in ones)
    gathered = hvd.grouped_allgather([torch.full((rank + n, 2), rank) for n in range(3)])
    for n, g in enumerate(gathered):
        assert g[:, 0].tolist() == [r for r in range(size) for _ in range(r + n)]
    scattered = hvd.grouped_reducescatter([torch.arange(7.0) + rank, torch.ones(3, 2)], op=hvd.Sum)
    share = [7 // size + (r < 7 % size) for r in range(size)]
    expected = (torch.arange(7.0) * size + total).split(share)[rank]
    assert scattered[0].tolist() == expected.tolist()
    assert scattered[1].shape == (3 // size + (rank < 3 % size), 2)
    assert hvd.grouped_allreduce([]) == []
    # Scales; integers are scaled in double precision and truncated.
    x = torch.tensor([3, 5]) + 0 * rank
    assert hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5).tolist() == [size, 2 * size]
    y = hvd.allreduce(torch.ones(3), op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
    assert y.tolist() == [6.0 * size] * 3
    assert hvd.allreduce(torch.tensor([-3 if rank == 0 else 0])).tolist() == [int(-3 / size)]
    # Mixed dtypes in a group.
    a, b = hvd.grouped_allreduce([torch.ones(2), torch.ones(2, dtype=torch.float64)], op=hvd.Sum)
    assert a.dtype == torch.float32 and b.dtype == torch.float64
    sparse = torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (size + 1,))
    done = hvd.sparse_allreduce_async(sparse, "sparse", op=hvd.Average)
    dense = done().to_dense()
    assert torch.allclose(dense[0], torch.tensor((2.0 * size + 1.0) / size)), dense
    assert dense[size].item() == 0
    # Large enough to travel beside the negotiation, and at the size from which on Gloo takes another way for two ranks.
    for count in (50_001, 1 << 18, (1 << 18) + 1):
        for dtype in (torch.float32, torch.float16, torch.int32):
            of_all = [(100 * torch.randn(count, generator=torch.Generator().manual_seed(r))).to(dtype) for r in range(size)]
            summed = hvd.allreduce(of_all[rank], op=hvd.Sum)
            if size == 2:
                assert torch.equal(summed, of_all[0] + of_all[1]), (count, dtype)
            else:
                assert torch.allclose(summed.float(), sum(of_all[1:], of_all[0]).float(), rtol=1e-2, atol=0.5), (count, dtype)
    # Handles.
    handle = hvd.allreduce_async(torch.ones(2), name="polled")
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]
    try:
        hvd.synchronize(handle)
    except ValueError as error:
        assert "was not created or has been cleared" in str(error)
    else:
        raise AssertionError
    hvd.barrier()
    hvd.shutdown()
    answer("fine")
    """
    assert run_anywhere(transport, size, script, BY_TRANSPORT) == ["fine"] * size


@pytest.mark.parametrize(("transport", "size"), [("gloo", 2), ("shm", 2), ("mpi", 2)])
def test_gradients_flow_through_operations(transport: str, size: int) -> None:
    """Horovod's formulas, which scripts rely on: sum and average, gather averages, broadcast to the root, exchange back."""
    script = """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()

    def gradient(operate, *shape):
        x = torch.ones(*shape, requires_grad=True)
        y = operate(x)
        (y * torch.ones_like(y).cumsum(0)).sum().backward()
        return x.grad

    assert gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), 3).tolist() == [size * 1.0, size * 2.0, size * 3.0]
    assert gradient(lambda x: hvd.allreduce(x, op=hvd.Average), 3).tolist() == [1.0, 2.0, 3.0]
    assert gradient(lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], 2).tolist() == [size * 1.0, size * 2.0]
    rows = rank + 1
    first = sum(range(1, rank + 1))
    expected = [float(first + k + 1) for k in range(rows)]
    assert gradient(lambda x: hvd.allgather(x), rows).tolist() == expected
    assert gradient(lambda x: hvd.broadcast(x, 1), 2).tolist() == ([1.0, 2.0] if rank == 1 else [0.0, 0.0])
    assert gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), size).tolist() == [1.0 * size] * size
    assert gradient(lambda x: hvd.reducescatter(x, op=hvd.Average), size).tolist() == [1.0] * size
    splits = torch.tensor([r + 1 for r in range(size)], dtype=torch.int32)
    sent = hvd.alltoall(torch.arange(3.0), splits)
    got = gradient(lambda x: hvd.alltoall(x, splits)[0], 3)
    back = []
    for r in range(size):
        back += [float(rank * (r + 1) + k + 1) for k in range(r + 1)]
    assert got.tolist() == back, (got, back)
    x = torch.ones(4, 3, requires_grad=True)
    hvd.allreduce(x.t().contiguous()).sum().backward()  # an expanded gradient is not contiguous
    assert (x.grad == 1).all()
    hvd.shutdown()
    answer("fine")
    """
    assert run_anywhere(transport, size, script, BY_TRANSPORT) == ["fine"] * size


@pytest.mark.parametrize(("transport", "size"), [("gloo", 2), ("mpi", 2), ("shm", 4)])
def test_join_lets_ranks_run_out_of_data(transport: str, size: int) -> None:
    """Zeros for sums, nothing for minima; a gather is refused; the last rank is told to all; and it goes on after."""
    script = """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for step in range(3):  # known tensors, too
        hvd.allreduce(torch.ones(2), name="known", op=hvd.Sum)
    if rank != 0:
        time.sleep(0.05 * rank)
        last = hvd.join()
    else:
        time.sleep(0.5)
        assert hvd.allreduce(torch.full((2,), 4.0), name="known", op=hvd.Sum).tolist() == [4.0, 4.0]
        assert hvd.allreduce(torch.full((2,), 4.0), op=hvd.Average).tolist() == [4.0 / size] * 2
        assert hvd.allreduce(torch.full((2,), 4), op=hvd.Min).tolist() == [4, 4]
        assert hvd.allreduce(torch.full((2,), -4.0), op=hvd.Max).tolist() == [-4.0, -4.0]
        assert [t.tolist() for t in hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], op=hvd.Product)] == [[1.0], [1.0, 1.0]]
        for operate in (
            lambda: hvd.allgather(torch.ones(1)),
            lambda: hvd.broadcast(torch.ones(1), 0),
            lambda: hvd.alltoall(torch.ones(size)),
            lambda: hvd.reducescatter(torch.ones(size)),
        ):
            try:
                operate()
            except hvd.HorovodInternalError as error:
                assert "is not supported with Join at this time." in str(error), error
            else:
                raise AssertionError("nothing was raised")
        last = hvd.join()
    assert hvd.allreduce(torch.ones(2), name="known", op=hvd.Sum).tolist() == [size, size]
    assert hvd.allgather(torch.ones(1)).shape == (size,)
    hvd.shutdown()
    answer(last)
    """
    assert run_anywhere(transport, size, script, BY_TRANSPORT) == [0] * size


@pytest.mark.parametrize(("transport", "size"), [("mpi", 2), ("shm", 4)])
def test_adasum_adds_what_is_orthogonal_and_averages_what_is_parallel(transport: str, size: int) -> None:
    """Equal vectors give themselves, orthogonal ones their sum; each tensor of a fused batch is treated for itself."""
    script = """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert torch.allclose(hvd.allreduce(torch.tensor([3.0, 4.0]), op=hvd.Adasum), torch.tensor([3.0, 4.0]))
    unit = torch.zeros(size)
    unit[rank] = 2.0
    assert torch.allclose(hvd.allreduce(unit, op=hvd.Adasum), torch.full((size,), 2.0))
    same, apart = hvd.grouped_allreduce([torch.ones(3), unit], op=hvd.Adasum)
    assert torch.allclose(same, torch.ones(3)) and torch.allclose(apart, torch.full((size,), 2.0))
    hvd.shutdown()
    answer("fine")
    """
    assert run_anywhere(transport, size, script, BY_TRANSPORT) == ["fine"] * size
