"""Modes of torch that the program is in while it calls: inference mode, a default device."""

import pytest

from .ranks import run_anywhere, run_ranks


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_inference_mode_around_every_kind_of_call(transport: str) -> None:
    """Whoever executes: the runtime's thread, this training while it waits, or another thread that waits for something else.

    Before and after, the same memory is used outside of inference mode.
    """
    answers = run_anywhere(
        transport,
        2,
        """
        import threading
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        total = sum(range(1, size + 1))

        def mine(numel=10):
            return torch.full((numel,), float(rank + 1))

        def waiting(start):
            handle = start()
            while not hvd.poll(handle):
                time.sleep(0.0002)
            return hvd.synchronize(handle)

        calls = {
            "allreduce": lambda: hvd.allreduce(mine(), name="a", op=hvd.Sum),
            "allreduce_": lambda: hvd.allreduce_(mine(), name="b", op=hvd.Sum),
            "allreduce_async": lambda: waiting(lambda: hvd.allreduce_async(mine(), name="c", op=hvd.Sum)),
            "allreduce_async_": lambda: waiting(lambda: hvd.allreduce_async_(mine(), name="d", op=hvd.Sum)),
            "grouped": lambda: waiting(lambda: hvd.grouped_allreduce_async([mine(), mine(3)], name="e", op=hvd.Sum))[0],
            "scaled": lambda: hvd.allreduce(mine(), name="s", op=hvd.Sum, prescale_factor=2.0) / 2,
        }
        others = {
            "allgather": (lambda: waiting(lambda: hvd.allgather_async(mine(1), name="f")).tolist(), [1.0, 2.0]),
            "broadcast": (lambda: waiting(lambda: hvd.broadcast_async_(mine(1), 1, name="g")).tolist(), [2.0]),
            "alltoall": (lambda: hvd.alltoall(mine(2), name="h").tolist(), [1.0, 2.0]),
            "reducescatter": (lambda: hvd.reducescatter(mine(2), name="i", op=hvd.Sum).tolist(), [3.0]),
        }
        wrong = []

        def check(where):
            for name, call in calls.items():
                if call().tolist() != [float(total)] * 10:
                    wrong.append(f"{where}: {name}")
            for name, (call, expected) in others.items():
                if call() != expected:
                    wrong.append(f"{where}: {name}")

        for _ in range(3):
            with torch.inference_mode():
                check("inside")
            check("outside")

        # Two threads: one inside, one whose results have to be good for autograd.
        def outside():
            for number in range(15):
                weight = torch.ones(4, requires_grad=True)
                gathered = hvd.allgather(mine(4), name="thread.gathered")[:4]
                ((weight * hvd.allreduce(mine(4), name="thread.reduced")) * gathered).sum().backward()

        thread = threading.Thread(target=outside)
        thread.start()
        with torch.inference_mode():
            for _ in range(15):
                hvd.allreduce(mine(), name="main")
                hvd.grouped_allreduce([mine(3), mine(5)], name="main.grouped")
        thread.join()
        hvd.barrier()
        answer(wrong)
        """,
    )

    assert answers == [[], []]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_default_device_of_the_program_is_not_the_runtimes(device: str) -> None:
    """Large models are built with `torch.device("meta")`; whatever is called in there works."""
    results = run_ranks(
        2,
        f"""
        hvd.init(process_sets="dynamic")
        rank = hvd.rank()
        x = torch.arange(4.0) + rank
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters())
        if rank == 0:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        weights = model.weight.tolist() if rank == 0 else None
        found = {{}}
        with torch.device({device!r}):
            found["allreduce"] = hvd.allreduce(x, name="a", op=hvd.Sum).tolist()
            found["grouped"] = [t.tolist() for t in hvd.grouped_allreduce([x, x + 1], name="b", op=hvd.Max)]
            found["allgather"] = hvd.allgather(x[:1], name="c").tolist()
            found["alltoall"] = hvd.alltoall(x, name="d").tolist()
            found["splits"] = hvd.alltoall(x, splits=[1, 3], name="e")[1].tolist()
            found["reducescatter"] = hvd.reducescatter(x, name="f", op=hvd.Sum).tolist()
            found["object"] = hvd.broadcast_object({{"rank": rank}}, root_rank=1)
            found["objects"] = hvd.allgather_object(rank)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            found["state"] = sorted({{str(v.device) for s in optimizer.state.values() for v in s.values()}})
            sparse = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64, device="cpu"), x[1:2], (4,), device="cpu")
            found["sparse"] = hvd.sparse_allreduce_async(sparse, "g", hvd.Sum)().to_dense().tolist()
            pair = hvd.add_process_set([0])
            hvd.barrier()
            hvd.remove_process_set(pair)
            wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            loss = model(torch.ones(1, 3, device="cpu")).sum()
            loss.backward()
            wrapped.step()
            found["gradient"] = model.weight.grad.tolist()
            try:
                hvd.allreduce(torch.ones(3, device="meta"), name="h")
            except ValueError as error:
                found["refused"] = "meta" in str(error)
            found["join"] = hvd.join() >= 0
        answer(found)
        """,
    )

    for rank, result in enumerate(results):
        assert result.answer == {
            "allreduce": [1.0, 3.0, 5.0, 7.0],
            "grouped": [[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]],
            "allgather": [0.0, 1.0],
            "alltoall": [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.0, 4.0]][rank],
            "splits": [[1, 1], [3, 3]][rank],
            "reducescatter": [[1.0, 3.0], [5.0, 7.0]][rank],
            "object": {"rank": 1},
            "objects": [0, 1],
            "state": ["cpu"],
            "sparse": [3.0, 0.0, 0.0, 0.0],
            "gradient": [[1.5, 1.5, 1.5]] * 2,
            "refused": True,
            "join": True,
        }
