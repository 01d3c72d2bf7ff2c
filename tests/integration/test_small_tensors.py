"""Small tensors that travel in the messages of the control plane: the same results as by a transport, on all ranks the same."""

from pathlib import Path

import pytest

from tlkit.timeline import open_trace

from .ranks import run_ranks

_EVERY_KIND = """
hvd.init()
rank, size = hvd.rank(), hvd.size()
found = {}

def keep(what, tensor):
    found[what] = [str(tensor.dtype), list(tensor.shape), tensor.double().flatten().tolist()]

for name in ("int32", "int64", "float16", "bfloat16", "float32", "float64"):
    dtype = getattr(torch, name)
    x = (torch.arange(-3, 4) * (rank + 1)).to(dtype)
    for op in ("Average", "Sum", "Min", "Max", "Product"):
        for scales in ((1.0, 1.0), (2.0, 0.5)):
            keep(f"{name} {op} {scales}", hvd.allreduce(
                x, op=getattr(hvd, op), prescale_factor=scales[0], postscale_factor=scales[1], name=f"{name}.{op}.{scales}"))
    twice = [hvd.allreduce_(x.clone(), op=hvd.Sum, name=f"again.{name}") for _ in range(3)]
    keep(f"{name} again", torch.stack(twice))
    keep(f"{name} scalar", hvd.allreduce(x[6].clone(), op=hvd.Sum))
    for place, each in enumerate(hvd.grouped_allreduce([x, x[:2].clone()], op=hvd.Sum)):
        keep(f"{name} grouped {place}", each)
for name in ("uint8", "int8", "int16", "bool", "bfloat16", "float32"):
    x = torch.arange(6).reshape(3, 2).to(getattr(torch, name)) * (rank + 1)
    keep(f"{name} gathered", hvd.allgather(x[: rank + 1].contiguous()))
    keep(f"{name} broadcast", hvd.broadcast(x, 1))
    keep(f"{name} broadcast async", hvd.synchronize(hvd.broadcast_async_(x.clone(), size - 1, name=f"b.{name}")))
keep("empty", hvd.allreduce(torch.empty(0, 3)))
keep("of the limit", hvd.allreduce(torch.full((2048,), float(rank)), op=hvd.Sum))
keep("above it", hvd.allreduce(torch.full((2049,), float(rank)), op=hvd.Sum))
weight = torch.full((3,), 2.0, requires_grad=True)
(hvd.allreduce(weight * (rank + 1), op=hvd.Sum) ** 2).sum().backward()
keep("gradient", weight.grad / (rank + 1))
answer(found)
"""


@pytest.mark.parametrize("size", [2, 3])
def test_results_are_those_of_a_transport(size: int) -> None:
    """Every kind, type and operation; once with everything moved by Gloo, once as usual."""
    usual = run_ranks(size, _EVERY_KIND)
    moved = run_ranks(size, _EVERY_KIND, {"HOROVOD_SMALL_TENSOR_BYTES": "0"})

    assert [result.answer for result in usual] == [result.answer for result in moved]
    assert len({str(result.answer) for result in usual}) == 1


def test_sums_are_the_same_bits_on_all_ranks() -> None:
    """Of numbers whose sum depends on the order."""
    results = run_ranks(
        4,
        """
        hvd.init()
        torch.manual_seed(hvd.rank())
        bits = []
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            for number in range(5):
                x = (torch.randn(100) * 10.0 ** torch.randint(-3, 4, (100,))).to(dtype)
                bits.append(hvd.allreduce(x, name=str(dtype)).view(torch.uint8).tolist())
        answer(bits)
        """,
    )

    assert all(result.answer == results[0].answer for result in results)


def test_ranks_need_not_ask_in_the_same_way() -> None:
    """One waits in the call, the other later; one has its memory on another limit; sets overlap; a rank runs out of data."""
    results = run_ranks(
        3,
        """
        rank = int(os.environ["HOROVOD_RANK"])
        os.environ["HOROVOD_SMALL_TENSOR_BYTES"] = "64" if rank == 2 else "8192"
        pair = hvd.ProcessSet([0, 2])
        hvd.init(process_sets=[pair])
        wrong = []

        def check(what, tensor, expected):
            if tensor.tolist() != expected:
                wrong.append([what, tensor.tolist()])

        for step in range(6):
            mine = torch.full((2,), float(rank + step))
            if rank == 1 or step % 2:
                handle = hvd.allreduce_async(mine, op=hvd.Sum, name="mixed")
                other = hvd.allreduce_async(mine * 2, op=hvd.Sum, name="other")
                check("mixed", hvd.synchronize(handle), [3.0 + 3 * step] * 2)
                check("other", hvd.synchronize(other), [6.0 + 6 * step] * 2)
            else:
                other = hvd.allreduce_async(mine * 2, op=hvd.Sum, name="other")
                check("mixed", hvd.allreduce(mine, op=hvd.Sum, name="mixed"), [3.0 + 3 * step] * 2)
                check("other", hvd.synchronize(other), [6.0 + 6 * step] * 2)
            check("larger", hvd.allreduce(torch.full((100,), 1.0), op=hvd.Sum, name="larger")[:1], [3.0])
            if pair.included():
                check("pair", hvd.allreduce(mine, op=hvd.Sum, name="pair", process_set=pair), [2.0 + 2 * step] * 2)
                check("root", hvd.broadcast(mine, 2, name="root", process_set=pair), [2.0 + step] * 2)
            # Its shape differs from step to step.
            check("shape", hvd.allreduce(torch.ones(step + 1), op=hvd.Sum, name="shape"), [3.0] * (step + 1))
        for step in range(4):
            if rank == 1 and step == 2:
                break
            check("join", hvd.allreduce(torch.ones(1), op=hvd.Sum, name="joined"), [3.0 if step < 2 else 2.0])
        hvd.join()
        check("after", hvd.allreduce(torch.ones(1), op=hvd.Sum, name="joined"), [3.0])
        try:
            hvd.allreduce(torch.ones(1 + rank), name="wrong")
        except hvd.HorovodInternalError as error:
            check("refused", torch.tensor(["Mismatched ALLREDUCE tensor shapes" in str(error)]), [True])
        check("afterwards", hvd.allreduce(torch.ones(1), op=hvd.Sum, name="wrong"), [3.0])
        answer(wrong)
        """,
    )

    assert [result.answer for result in results] == [[]] * 3


def test_the_timeline_says_what_moved_them(tmp_path: Path) -> None:
    """A collective like any other: with its bytes, its number and when each rank arrived."""
    run_ranks(
        2,
        """
        hvd.init()
        for step in range(5):
            hvd.allreduce(torch.ones(4), name="loss")
            hvd.allreduce(torch.ones(4096), name="large")
        hvd.shutdown()
        """,
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    collectives = open_trace(tmp_path / "t.json").collectives

    small = collectives[collectives["nbytes"] == 16]
    large = collectives[collectives["nbytes"] == 16384]
    assert list(small["algorithm"].astype(str)) == ["control"] * 10
    assert list(large["algorithm"].astype(str)) == ["shm"] * 10
    assert sorted(small["seq"]) == sorted([*range(0, 10, 2)] * 2)
