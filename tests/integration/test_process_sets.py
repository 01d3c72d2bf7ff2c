"""Process sets on real ranks: static, dynamic, from MPI communicators; operations, training and mistakes."""

import pytest

from .ranks import has_mpi, run_anywhere, run_mpi_ranks, run_ranks


@pytest.mark.parametrize(("transport", "size"), [("shm", 4), ("mpi", 4)])
def test_operations_run_among_the_ranks_of_a_set(transport: str, size: int) -> None:
    """Static sets, overlapping, each at its own pace; roots are global ranks."""
    script = """
    low, high, ends = hvd.ProcessSet([0, 1]), hvd.ProcessSet([3, 2]), hvd.ProcessSet([0, 3])
    hvd.init(process_sets=[low, high, ends])
    rank = hvd.rank()
    mine = low if rank < 2 else high
    assert (low.process_set_id, high.process_set_id, ends.process_set_id) == (1, 2, 3)
    assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1, 2, 3], 1: [0, 1], 2: [2, 3], 3: [0, 3]}
    assert mine.included() and mine.size() == 2 and mine.rank() == rank % 2
    base = 2 * (rank // 2)
    for step in range(20):
        assert hvd.allreduce(torch.tensor([rank + step]), op=hvd.Sum, name="same", process_set=mine).item() == 2 * base + 1 + 2 * step
    assert hvd.allgather(torch.tensor([[rank]]), process_set=mine).flatten().tolist() == [base, base + 1]
    assert hvd.broadcast(torch.tensor([rank]), base + 1, process_set=mine).item() == base + 1
    assert hvd.alltoall(torch.tensor([10 * rank, 10 * rank + 1]), process_set=mine).tolist() == [10 * base + rank % 2, 10 * base + 10 + rank % 2]
    assert hvd.reducescatter(torch.ones(3), op=hvd.Sum, process_set=mine).tolist() == [2.0] * (2 if rank % 2 == 0 else 1)
    hvd.barrier(process_set=mine)
    # One set makes progress while a rank of another one is late.
    if rank == 1:
        time.sleep(1.0)
        late = hvd.allreduce(torch.ones(1), name="late", op=hvd.Sum, process_set=low)
    else:
        handle = hvd.allreduce_async(torch.ones(1), name="late", op=hvd.Sum, process_set=low) if rank == 0 else None
        if rank in (0, 3):
            begun = time.monotonic()
            for _ in range(20):
                hvd.allreduce(torch.ones(1), name="quick", op=hvd.Sum, process_set=ends)
            took = time.monotonic() - begun
            assert took < 0.8, took
        if handle is not None:
            assert hvd.synchronize(handle).item() == 2.0
    # Mistakes.
    other = high if rank < 2 else low
    for operate, words in (
        (lambda: hvd.allreduce(torch.ones(1), process_set=other), "is not a member of the provided process set"),
        (lambda: hvd.broadcast(torch.ones(1), base + 2 if base == 0 else 0, process_set=mine), "invalid root rank"),
        (lambda: hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0])), "has not been registered"),
        (lambda: hvd.add_process_set([0, 2]), "HOROVOD_DYNAMIC_PROCESS_SETS=1"),
        (other.rank, "Process is not part of provided process set."),
    ):
        try:
            operate()
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    hvd.barrier()
    hvd.shutdown()
    assert low.process_set_id is None
    answer("fine")
    """
    assert run_anywhere(transport, size, script) == ["fine"] * size


@pytest.mark.parametrize(("transport", "size"), [("gloo", 3), ("shm", 3), ("mpi", 3)])
def test_sets_come_and_go_while_the_runtime_runs(transport: str, size: int) -> None:
    """Ids are used again, what is pending in a removed set fails, ranks that ask for different sets are told."""
    script = """
    hvd.init(process_sets="dynamic")
    rank = hvd.rank()
    pair = hvd.add_process_set([0, 2])
    assert pair.process_set_id == 1
    for round in range(3):
        if pair.included():
            assert hvd.allreduce(torch.tensor([rank]), name="x", op=hvd.Sum, process_set=pair).item() == 2
        if rank == 0:
            waiting = hvd.allreduce_async(torch.ones(1), name="left", process_set=pair)
            time.sleep(0.05)
        assert hvd.remove_process_set(pair) is True
        assert hvd.remove_process_set(pair) is False
        if rank == 0:
            try:
                hvd.synchronize(waiting)
            except hvd.HorovodInternalError as error:
                assert "Process set has been removed" in str(error), error
            else:
                raise AssertionError
        pair = hvd.add_process_set(hvd.ProcessSet([0, 2]))
        assert pair.process_set_id == 1
    assert hvd.remove_process_set(hvd.global_process_set) is False
    for wrong, words in (([0, 7], "no rank 7"), ([0, 1, 2], "duplicate process set"), ([0, 2], "duplicate process set"), ([], "empty")):
        try:
            hvd.add_process_set(wrong)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    try:
        hvd.add_process_set([0, 1] if rank == 0 else [1, 2])
    except hvd.HorovodInternalError as error:
        assert "Mismatched process sets" in str(error), error
    else:
        raise AssertionError
    one = hvd.add_process_set([1])
    assert one.process_set_id == 2
    if rank == 1:
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=one).tolist() == [1.0, 1.0]
        assert hvd.alltoall(torch.arange(3), process_set=one).tolist() == [0, 1, 2]
    hvd.barrier()
    hvd.shutdown()
    answer("fine")
    """
    assert run_anywhere(transport, size, script) == ["fine"] * size


def test_ranks_that_want_different_sets_at_the_start_are_told() -> None:
    """No rank waits, all say which rank wants what."""
    script = """
    rank = int(os.environ["HOROVOD_RANK"])
    said = []
    for sets in ([[0, 1]] if rank == 0 else [[1, 2]], [[0, 1]] * (rank + 1), [[0, 9]], [[0, 1], [1, 0]], [[0, 1, 2]]):
        try:
            hvd.init(process_sets=[hvd.ProcessSet(ranks) for ranks in sets])
        except ValueError as error:
            said.append(str(error))
    hvd.init()
    answer([said, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()])
    hvd.shutdown()
    """
    for result in run_ranks(3, script):
        said, total = result.answer
        assert total == 3
        assert [text.removeprefix("Horovod initialization failed: ") for text in said] == [
            (
                "Attempted to register process set with mismatching values on different ranks: [0, 1] on rank 0; [1, 2] on rank 1; "
                "[1, 2] on rank 2"
            ),
            "Different ranks tried to set up mismatching numbers of process sets: 1 on rank 0, 2 on rank 1, 3 on rank 2",
            "process_sets[0] is wrong: there is no rank 9 among 3",
            "process_sets[1] is a duplicate: ranks [0, 1] are a process set already",
            "process_sets[0] is a duplicate: ranks [0, 1, 2] are a process set already",
        ]


def test_sets_do_not_outlive_the_runtime() -> None:
    """In its next life their ids mean other sets: what was asked of the old ones would go there."""
    script = """
    old = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 2]), hvd.ProcessSet([0, 1])]
    hvd.init(process_sets=old)
    hvd.shutdown()
    ids = [each.process_set_id for each in old]
    new = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([0, 1])]
    hvd.init(process_sets=new)
    try:
        hvd.allreduce(torch.ones(1), process_set=old[1])
        said = "reduced"
    except ValueError as error:
        said = str(error)
    hvd.barrier()
    hvd.shutdown()
    answer([ids, said])
    """
    for result in run_ranks(3, script):
        ids, said = result.answer
        assert ids == [None, None, None]
        assert "has not been registered" in said


def test_init_adds_sets_while_the_runtime_runs() -> None:
    """As a library does that comes after the script's own init: what exists gets its id, what does not is added."""
    script = """
    first = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[first])
    again, ends = hvd.ProcessSet([1, 0]), hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[again, ends])
    said = [first.process_set_id, again.process_set_id, hvd.get_process_set_ids_and_ranks()[ends.process_set_id]]
    if ends.included():
        said.append(hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum, process_set=ends).item())
    for wrong in ([hvd.ProcessSet([0, 1, 2])], [hvd.ProcessSet([0, 9])], [hvd.ProcessSet([1]), hvd.ProcessSet([1])]):
        try:
            hvd.init(process_sets=wrong)
        except ValueError as error:
            said.append(str(error))
    try:
        hvd.add_process_set([1, 2])
    except ValueError:
        hvd.init(process_sets="dynamic")
        said.append(hvd.add_process_set([1, 2]).ranks)
    hvd.remove_process_set(again)
    said.append([first.process_set_id, again.process_set_id])
    hvd.shutdown()
    answer(said)
    """
    answers = [result.answer for result in run_ranks(3, script)]
    rest = [
        "process_sets[0] is a duplicate: ranks [0, 1, 2] are a process set already",
        "process_sets[0] is wrong: there is no rank 9 among 3",
        "process_sets[1] is a duplicate: ranks [1] are a process set already",
        [1, 2],
        [None, None],
    ]

    assert answers == [[1, 1, [0, 2], 4.0, *rest], [1, 1, [0, 2], *rest], [1, 1, [0, 2], 4.0, *rest]]


def test_optimizers_of_two_sets_train_two_models() -> None:
    """Each set trains its own model; ranks outside a set leave its gradients alone."""
    script = """
    sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])]
    hvd.init(process_sets=sets)
    rank = hvd.rank()
    mine = sets[rank // 2]
    torch.manual_seed(rank // 2)
    model = torch.nn.Linear(4, 1).double()
    shared = torch.nn.Linear(1, 1).double()
    hvd.broadcast_parameters(shared.state_dict(), 0)
    hvd.broadcast_parameters(model.state_dict(), 2 * (rank // 2), process_set=mine)
    own = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), process_set=mine)
    joint = hvd.DistributedOptimizer(torch.optim.SGD(shared.parameters(), 0.1), [("s." + n, p) for n, p in shared.named_parameters()])
    other = torch.nn.Linear(2, 1)
    outside = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), 0.1), other.named_parameters(), process_set=sets[1 - rank // 2])
    for step in range(6):
        torch.manual_seed(100 * step + rank)
        own.zero_grad(); joint.zero_grad(); outside.zero_grad()
        shared(model(torch.randn(3, 4).double())).square().mean().backward()
        other(torch.ones(1, 2)).sum().backward()
        own.step(); joint.step(); outside.step()
    assert len(set(map(str, hvd.allgather_object(model.weight.tolist(), process_set=mine)))) == 1
    models = {str(w) for w in hvd.allgather_object(model.weight.tolist())}
    assert len(models) == 2, models
    assert len({str(w) for w in hvd.allgather_object(shared.weight.tolist())}) == 1
    hvd.shutdown()
    answer("fine")
    """
    assert [result.answer for result in run_ranks(4, script)] == ["fine"] * 4


@pytest.mark.skipif(not has_mpi(), reason="no MPI here")
def test_sets_from_mpi_communicators() -> None:
    """A split of the world makes as many sets as it has parts; a job can run on a part of MPI's world."""
    script = """
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    part = world.Split(color=world.rank % 2, key=world.rank)
    mine = hvd.ProcessSet(part)
    try:
        hvd.init(process_sets=[mine])
    except NotImplementedError as error:
        assert "global one" in str(error)
    else:
        raise AssertionError
    hvd.init(world, process_sets=[mine])
    rank = hvd.rank()
    assert hvd.size() == 4 and rank == world.rank and hvd.mpi_enabled()
    assert mine.ranks == ([0, 2] if rank % 2 == 0 else [1, 3]) and mine.process_set_id == 1 + rank % 2
    assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=mine).item() == sum(mine.ranks)
    hvd.barrier()
    hvd.shutdown()
    hvd.init(part)
    assert hvd.size() == 2 and hvd.rank() == part.rank
    assert hvd.allgather_object(world.rank) == ([0, 2] if world.rank % 2 == 0 else [1, 3])
    hvd.shutdown()
    hvd.init([0, 1] if world.rank < 2 else [3, 2])
    assert hvd.size() == 2
    assert hvd.allgather_object(world.rank) == ([0, 1] if world.rank < 2 else [3, 2])
    world.Barrier()
    hvd.shutdown()
    answer("fine")
    """
    assert run_mpi_ranks(4, script) == ["fine"] * 4


@pytest.mark.skipif(not has_mpi(), reason="no MPI here")
def test_an_exception_of_one_rank_ends_an_mpi_job() -> None:
    """MPI's own end waits for all ranks; a rank that dies of an exception must not."""
    script = """
    hvd.init()
    if hvd.rank() == 1:
        raise RuntimeError("on purpose")
    hvd.allreduce(torch.ones(1), name="never")
    """
    with pytest.raises(AssertionError, match="on purpose"):
        run_mpi_ranks(2, script, {"HOROVOD_CPU_OPERATIONS": "mpi"}, timeout_s=120)
