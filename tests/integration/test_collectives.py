"""Real ranks, real Gloo: what the collectives compute, and what happens when ranks disagree, leave or die."""

import signal

import pytest

from .ranks import fork_ranks, run_ranks


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_compute_what_they_say(size: int) -> None:
    """Every operation, on every rank, equals the same computation done in one process."""
    results = run_ranks(
        size,
        """
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        base = torch.arange(6, dtype=torch.float64).reshape(2, 3) + 1
        mine = base * (rank + 1)
        factor = sum(range(1, size + 1))
        checks = {
            "sum": torch.equal(hvd.allreduce(mine, op=hvd.Sum), base * factor),
            "average": torch.allclose(hvd.allreduce(mine), base * factor / size, rtol=1e-15),
            "min": torch.equal(hvd.allreduce(mine, op=hvd.Min), base),
            "max": torch.equal(hvd.allreduce(mine, op=hvd.Max), base * size),
            "scaled": torch.equal(
                hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), base * factor
            ),
            "truncated": hvd.allreduce(torch.tensor([-3 if rank == 0 else 0])).tolist()
            == [int(-3 / size)],
            "empty": hvd.allreduce(torch.empty(0)).shape == (0,),
            "scalar": hvd.allreduce(torch.tensor(2.0), op=hvd.Sum).item() == 2.0 * size,
            "bfloat16": hvd.allreduce(torch.ones(3, dtype=torch.bfloat16), op=hvd.Sum).tolist() == [size] * 3,
            "gather": torch.equal(
                hvd.allgather(torch.full((rank, 2), rank)),
                torch.cat([torch.full((r, 2), r) for r in range(size)]),
            ),
            "broadcast": hvd.broadcast(mine, size - 1).equal(base * size),
            "object": hvd.broadcast_object({"from": rank}, size - 1) == {"from": size - 1},
            "objects": hvd.allgather_object([rank] * rank) == [[r] * r for r in range(size)],
        }
        in_place = mine.clone()
        checks["in place"] = hvd.allreduce_(in_place, op=hvd.Sum) is in_place and in_place.equal(base * factor)
        many = [torch.full((n,), float(rank), dtype=torch.float32 if n % 2 else torch.int64) for n in range(9)]
        total = sum(range(size))
        checks["grouped"] = [t.tolist() for t in hvd.grouped_allreduce(many, op=hvd.Sum)] == [
            [total] * n for n in range(9)
        ]
        handles = [hvd.allgather_async(torch.full((1 + rank, n), n), name=f"g{n}") for n in range(1, 5)]
        gathered = [hvd.synchronize(h) for h in handles]
        checks["fused gathers"] = all(
            g.shape == (size + total, n) and bool((g == n).all()) for n, g in enumerate(gathered, 1)
        )
        leaf = torch.ones(3, requires_grad=True)
        hvd.allreduce(leaf * (rank + 1), op=hvd.Sum).sum().backward()
        checks["gradient"] = leaf.grad.tolist() == [(rank + 1) * size] * 3
        hvd.barrier()
        hvd.shutdown()
        answer({name: bool(value) for name, value in checks.items()})
        """,
    )

    for result in results:
        assert isinstance(result.answer, dict)
        assert [name for name, good in result.answer.items() if not good] == []


def test_any_order_of_submission_works() -> None:
    """Ranks submit the same names in different orders and all get all results."""
    results = run_ranks(
        3,
        """
        import random
        hvd.init()
        names = [f"t{i}" for i in range(60)]
        for step in range(5):
            random.Random(100 * step + hvd.rank()).shuffle(names)
            handles = {n: hvd.allreduce_async(torch.full((3,), float(n[1:])), name=n, op=hvd.Sum) for n in names}
            for name, handle in handles.items():
                assert hvd.synchronize(handle).tolist() == [3 * float(name[1:])] * 3, name
        answer(True)
        """,
    )

    assert [result.answer for result in results] == [True] * 3


def test_blocking_reductions_take_a_priority() -> None:
    """All four of them, and the gradient of the differentiable ones is reduced with it, too."""
    results = run_ranks(
        2,
        """
        from tlkit.runtime.core import engine
        hvd.init()
        x = torch.ones(3)
        hvd.allreduce(x, name="a", priority=1)
        hvd.allreduce_(x, name="b", priority=2)
        hvd.grouped_allreduce([x, x], name="c", priority=3)
        hvd.grouped_allreduce_([x, x.clone()], name="d", priority=4)
        weight = torch.ones(3, requires_grad=True)
        hvd.allreduce(weight, name="e", op=hvd.Sum, priority=5).sum().backward()
        hvd.grouped_allreduce([weight], name="f", op=hvd.Sum, priority=6)[0].sum().backward()
        names = ("allreduce.a", "allreduce.b", "grouped_allreduce.c_1of2", "grouped_allreduce.d_2of2", "allreduce.noname.1",
                 "grouped_allreduce.noname.1_1of1")
        member = engine.current().control.tensor_table
        answer([[member.record(0, name).request.priority for name in names], weight.grad.tolist()])
        hvd.barrier()  # the end of one rank would have the other forget
        """,
    )

    assert [result.answer for result in results] == [[[1, 2, 3, 4, 5, 6], [4.0] * 3]] * 2


def test_disagreement_raises_everywhere_and_the_job_goes_on() -> None:
    """A mismatch is an error on all ranks that names tensor and ranks; the next operation works."""
    results = run_ranks(
        2,
        """
        hvd.init()
        try:
            hvd.allreduce(torch.ones(3 + hvd.rank()), name="uneven")
        except hvd.HorovodInternalError as error:
            message = str(error)
        answer([message, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()])
        """,
    )

    for result in results:
        assert isinstance(result.answer, list)
        message, after = result.answer
        assert message.startswith("Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [3]")
        assert "allreduce.uneven: [3] on rank 0; [4] on rank 1" in message
        assert after == 2.0


def test_wrong_arguments_are_value_errors_before_anything_is_sent() -> None:
    """Each message is the one that scripts know from Horovod."""
    (result,) = run_ranks(
        1,
        """
        def message_of(call):
            try:
                call()
            except (ValueError, hvd.HorovodInternalError) as error:
                return [type(error).__name__, str(error)]
        before = [message_of(hvd.rank), message_of(lambda: hvd.allreduce(torch.ones(1)))]
        hvd.init()
        pending = hvd.allreduce_async(torch.ones(1), name="x")
        hvd.synchronize(pending)
        answer(before + [
            message_of(lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)),
            message_of(lambda: hvd.allreduce_async_(torch.ones(2, 3).t())),
            message_of(lambda: hvd.allreduce(torch.ones(1, dtype=torch.bool))),
            message_of(lambda: hvd.broadcast(torch.ones(1), 7)),
            message_of(lambda: hvd.poll(99999)),
            message_of(lambda: hvd.synchronize(pending)),
            message_of(lambda: hvd.start_timeline("t.json")),
        ])
        """,
    )

    assert result.answer == [
        ["ValueError", "Horovod has not been initialized; use hvd.init()."],
        ["HorovodInternalError", "Horovod has not been initialized; use hvd.init()."],
        ["ValueError", "The op parameter supersedes average. Please provide only one of them."],
        ["ValueError", "Tensor is required to be contiguous."],
        ["ValueError", "Tensor type torch.BoolTensor is not supported."],
        ["ValueError", "broadcast received invalid root rank 7 for provided process set"],
        ["ValueError", "Handle 99999 was not created or has been cleared."],
        ["ValueError", "Handle 1 was not created or has been cleared."],
        ["ValueError", "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage."],
    ]


def test_a_killed_rank_fails_the_others_at_once() -> None:
    """kill -9 of one rank: the others get an error that names it, and end."""
    results = fork_ranks(
        3,
        """
        hvd.init()
        for i in range(1_000_000):
            hvd.allreduce(torch.ones(1000), name="x")
            if hvd.rank() == 1 and i == 100:
                os.kill(os.getpid(), 9)
        """,
        {},
        timeout_s=60,
    )

    assert results[1].returncode == -signal.SIGKILL
    for rank in (0, 2):
        assert results[rank].returncode == 1
        assert "HorovodInternalError" in results[rank].stderr


def test_a_rank_that_finishes_early_ends_the_job_for_the_others() -> None:
    """Who goes on asking gets an error that says so, not a hang."""
    results = fork_ranks(
        2,
        """
            hvd.init()
            hvd.allreduce(torch.ones(1))
            if hvd.rank() == 0:
                try:
                    hvd.allreduce(torch.ones(1), name="alone")
                except hvd.HorovodInternalError as error:
                    answer(str(error))
            """,
        {},
    )

    assert [result.returncode for result in results] == [0, 0]
    assert isinstance(results[0].answer, str)
    assert "Horovod has been shut down" in results[0].answer
    assert "rank 1 has shut down" in results[0].answer


def test_a_rank_may_be_done_before_another_has_come_up() -> None:
    """Rank 0 shuts down while rank 1 still compares its clock: both have had their runtime, and can have it again."""
    results = run_ranks(
        2,
        """
        from tlkit.runtime.core import engine
        measure = engine.measure
        engine.measure = lambda *arguments, **options: (time.sleep(1), measure(*arguments, **options))[1]
        hvd.init()
        hvd.shutdown()
        hvd.init()
        answer(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
        """,
    )
    assert [result.answer for result in results] == [2.0, 2.0]


def test_nothing_is_left_after_shutdown_and_init_works_again() -> None:
    """Threads and file descriptors are gone; a second init is a fresh start."""
    results = run_ranks(
        2,
        """
        import threading
        hvd.init(); hvd.allreduce(torch.ones(1)); hvd.shutdown()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            hvd.init()
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2.0
            hvd.shutdown()
        answer([threading.active_count(), len(os.listdir("/proc/self/fd")) - before])
        """,
    )

    for result in results:
        assert isinstance(result.answer, list)
        threads, descriptors = result.answer
        assert threads == 1
        assert descriptors <= 2


def test_a_stalled_tensor_is_reported_and_ends_the_job_when_asked() -> None:
    """The warning names the missing rank and the tensor; after the limit everybody gets an error."""
    results = fork_ranks(
        2,
        """
            hvd.init()
            try:
                if hvd.rank() == 0:
                    hvd.allreduce(torch.ones(1), name="lonely")
                else:
                    time.sleep(4)
                    hvd.allreduce(torch.ones(1), name="late")
            except hvd.HorovodInternalError as error:
                answer(str(error))
            """,
        {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"},
    )

    assert "Missing ranks:" in results[0].stderr
    assert "1: [allreduce.lonely]" in results[0].stderr
    for result in results:
        assert isinstance(result.answer, str)
        assert "ranks [1] did not submit allreduce.lonely within 2 s" in result.answer


def test_asynchronous_operations_finish_without_anybody_waiting() -> None:
    """Submitted one by one with pauses of any length, each is executed by itself."""
    results = run_ranks(
        2,
        """
        import random
        hvd.init()
        chance = random.Random(hvd.rank())
        late = 0
        for i in range(200):
            handle = hvd.allreduce_async(torch.ones(1), name=f"t{i}", op=hvd.Sum)
            deadline = time.monotonic() + 5
            while not hvd.poll(handle) and time.monotonic() < deadline:
                time.sleep(0.0002)
            late += not hvd.poll(handle)
            assert hvd.synchronize(handle).item() == 2
            time.sleep(chance.random() * 0.003)
        answer(late)
        """,
    )

    assert [result.answer for result in results] == [0, 0]


def test_the_others_hear_of_what_a_rank_has_died() -> None:
    """The first cause, not only that somebody is gone."""
    script = """
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("no such batch")
    try:
        hvd.allreduce(torch.ones(1))
    except hvd.HorovodInternalError as error:
        answer(str(error))
    """
    results = fork_ranks(3, script, {})

    for rank in (0, 2):
        assert "rank 1 on " in str(results[rank].answer)
        assert "died of KeyError: 'no such batch'" in str(results[rank].answer)
