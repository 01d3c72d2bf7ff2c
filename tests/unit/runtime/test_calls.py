"""Whose call a collective is, by the stack."""

import tempfile
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tlkit.runtime.core import calls
from tlkit.timeline.record import recorder
from tlkit.timeline.record.shard_format import UNKNOWN_CALL, Call, ShardClock, ShardHeader
from tlkit.timeline.record.shard_writer import ShardWriter

TORCH = str(Path(torch.__file__).parent)
C10D = f"{TORCH}/distributed/distributed_c10d.py"


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[None]:
    """A timeline is being written, without which helpers say nothing."""
    clock = ShardClock(origin_ns=0, origin_unix_ns=0)
    header = ShardHeader(
        run_id="r", rank=0, size=1, local_rank=0, host="h", boot_id="b", process_id=1, device="cpu", clock=clock
    )  # fmt: skip
    recorder.start_timeline(ShardWriter(tmp_path / "t.json", header, flush_interval_s=60))
    yield
    recorder.stop_timeline()


def code_in(path: str, function: str, line: int = 1) -> Callable[[Callable[[], Any]], Any]:
    """A function that calls what it is given, written in `path`."""
    made = types.ModuleType("made")
    text = "\n" * (line - 2) + f"def {function}(inner):\n    return inner()"
    exec(compile(text, path, "exec"), made.__dict__)
    found: Callable[[Callable[[], Any]], Any] = getattr(made, function)
    return found


def through(*frames: Callable[[Callable[[], Any]], Any], kind: str = "allreduce", blocking: bool = True) -> Call:
    """The call of torch.distributed that comes through these, from the outermost."""

    def inner() -> Call:
        return calls.current_of_torch(kind, blocking=blocking)

    chain: Callable[[], Any] = inner  # stands for our wrapper of torch's function, whose frame is not looked at
    for frame in reversed(frames):
        chain = partial(frame, chain)
    found: Call = chain()
    return found


def test_the_line_that_calls_is_the_user_s() -> None:
    """Of the innermost frame that is neither torch's nor ours; one object for the same line."""
    found = [calls.current(blocking=True) for _ in range(2)]
    other = calls.current(blocking=False)

    assert found[0] is found[1]
    assert found[0].caller == "user"
    assert found[0].where == f"test_calls.py:{test_the_line_that_calls_is_the_user_s.__code__.co_firstlineno + 2}"
    assert (found[0].blocking, other.blocking) == (True, False)


def test_a_helper_s_call_is_the_helper_s(recording: None) -> None:
    """The outermost helper counts, and only inside it."""
    with calls.calling("parameters"), calls.calling("object"):
        inside = calls.current(blocking=False)
    after = calls.current(blocking=True)

    assert (inside.caller, inside.blocking, inside.where.split(":")[0]) == ("parameters", True, "test_calls.py")
    assert after.caller == "user"
    with calls.handing_on(calls.GRADIENT):
        assert calls.current(blocking=True) is calls.GRADIENT
        assert calls.current_of_torch("allreduce", blocking=True) is calls.GRADIENT


def test_helpers_cost_nothing_while_nothing_is_recorded() -> None:
    """One shared object serves them all."""
    assert not recorder.is_timeline_on()
    assert calls.calling("object") is calls.handing_on(calls.GRADIENT)


@pytest.mark.parametrize(
    ("file", "function", "kind", "caller"),
    [
        (C10D, "broadcast_object_list", "broadcast", "object"),
        (f"{TORCH}/nn/modules/_functions.py", "forward", "allgather", "norm"),
        (f"{TORCH}/nn/parallel/distributed.py", "_sync_buffers", "broadcast", "parameters"),
        (f"{TORCH}/distributed/fsdp/_runtime_utils.py", "_unshard", "allgather", "parameters"),
        (f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce", "reducescatter", "gradient"),
        (f"{TORCH}/distributed/algorithms/ddp_comm_hooks/default_hooks.py", "_hook", "allreduce", "gradient"),
        (f"{TORCH}/distributed/algorithms/model_averaging/utils.py", "average", "allreduce", "parameters"),
        (f"{TORCH}/nn/modules/module.py", "__call__", "allreduce", "user"),
        (f"{TORCH}/nn/modules/module.py", "__call__", "barrier", "barrier"),
    ],
)
def test_libraries_in_torch_call_for_themselves(file: str, function: str, kind: str, caller: str) -> None:
    """By file and function; the user's line only where the user called."""
    user = code_in("/home/u/train.py", "main", line=30)
    found = through(user, code_in(file, function), kind=kind)

    assert found.caller == caller
    assert found.where == ("train.py:30" if caller in {"user", "object", "barrier"} else "")


def test_operators_of_tensor_parallelism_are_nobody_s() -> None:
    """They carry activations and gradients alike."""
    user = code_in("/home/u/train.py", "main")

    assert through(user, code_in(f"{TORCH}/distributed/tensor/_redistribute.py", "redistribute")) is UNKNOWN_CALL


def test_code_that_comes_and_goes_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are forgotten beyond a number, and found anew."""
    monkeypatch.setattr(calls, "MAX_REMEMBERED", 8)
    for number in range(50):
        user = code_in(f"{tempfile.gettempdir()}/ipykernel/{number}.py", "cell", line=number + 2)
        assert through(user).where == f"{number}.py:{number + 2}"

    assert len(calls._calls) <= 8
    assert len(calls._roles) <= 8
