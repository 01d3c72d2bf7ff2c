"""Instrumented torch behaves as torch does: compilation, tracing, copying, functional transforms, errors."""

from pathlib import Path

from .ranks import run_ranks


def test_modules_compile_trace_copy_and_transform_as_before(tmp_path: Path) -> None:
    """With recording on, every way in which modules are used gives the same results."""
    (result,) = run_ranks(
        1,
        """
        import copy, pickle
        reference_net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        x = torch.randn(3, 4)
        expected = reference_net(x)
        call_before, backward_before, save_before = torch.nn.Module.__call__, torch.autograd.backward, torch.save
        hvd.init()
        net = reference_net
        checks = {}
        torch._dynamo.reset()
        checks["compile"] = torch.allclose(torch.compile(net, backend="eager", fullgraph=True)(x), expected)
        graphs = []
        def count(graph, inputs):
            graphs.append(graph)
            return graph.forward
        class Outer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = net
            def forward(self, x):
                return self.inner(x) + 1
        compiled = torch.compile(Outer(), backend=count, fullgraph=True)
        for _ in range(3):
            checks["compile nested"] = torch.allclose(compiled(x), expected + 1)
        checks["one graph"] = len(graphs) == 1
        checks["trace"] = torch.allclose(torch.jit.trace(net, x)(x), expected)
        checks["script"] = torch.allclose(torch.jit.script(net)(x), expected)
        checks["fx"] = torch.allclose(torch.fx.symbolic_trace(net)(x), expected)
        checks["deepcopy"] = torch.allclose(copy.deepcopy(net)(x), expected)
        checks["pickle"] = torch.allclose(pickle.loads(pickle.dumps(net))(x), expected)
        params = dict(net.named_parameters())
        per_sample = torch.func.vmap(lambda row: torch.func.functional_call(net, params, (row,)))(x)
        checks["vmap"] = torch.allclose(per_sample, expected)
        checks["checkpointing"] = torch.allclose(
            torch.utils.checkpoint.checkpoint(net, x.requires_grad_(), use_reentrant=True), expected
        )
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=True).sum().backward()
        class Broken(torch.nn.Module):
            def forward(self, x):
                raise KeyError("mine")
        try:
            Broken()(x)
        except KeyError as error:
            checks["errors"] = error.args == ("mine",)
        state = torch.get_rng_state()
        list(torch.utils.data.DataLoader(torch.arange(4)))
        torch.manual_seed(1); first = [b.tolist() for b in torch.utils.data.DataLoader(torch.arange(9), shuffle=True)]
        hvd.shutdown()
        from tlkit.runtime import instrument
        instrument.uninstall()
        torch.manual_seed(1); second = [b.tolist() for b in torch.utils.data.DataLoader(torch.arange(9), shuffle=True)]
        checks["random numbers"] = first == second
        checks["restored"] = (
            torch.nn.Module.__call__ is call_before
            and torch.autograd.backward is backward_before
            and torch.save is save_before
        )
        answer({name: bool(value) for name, value in checks.items()})
        """,
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )

    assert isinstance(result.answer, dict)
    assert [name for name, good in result.answer.items() if not good] == []


def test_plain_optimizers_and_two_of_them_make_steps(tmp_path: Path) -> None:
    """Without DistributedOptimizer steps are still there; of two optimizers the first marks them."""
    (result,) = run_ranks(
        1,
        f"""
        from tlkit.timeline import open_trace
        hvd.init()
        first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters())
        for _ in range(5):
            for net, optimizer in ((first, one), (second, two)):
                optimizer.zero_grad()
                net(torch.ones(1, 2)).sum().backward()
                optimizer.step()
        torch.save(first.state_dict(), {str(tmp_path)!r} + "/model.pt")
        hvd.shutdown()
        trace = open_trace({str(tmp_path)!r} + "/t.json")
        counted = trace.spans.groupby("name", observed=True).size().to_dict()
        answer([len(trace.steps), counted["OPTIMIZER_STEP"], counted["BACKWARD"], counted["CHECKPOINT"]])
        """,
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )

    assert result.answer == [5, 10, 10, 1]
