"""Tests that need a CUDA device; without one they are skipped, with one line."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

Answer = Callable[..., object]

_PREAMBLE = """
import hashlib, json, os, sys, time
import torch
import torch.distributed as dist

def answer(value):
    print("ANSWER " + json.dumps(value), flush=True)

def cycles_of(milliseconds):
    '''How many cycles torch.cuda._sleep takes for so long.'''
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    begun.record()
    torch.cuda._sleep(20_000_000)
    ended.record()
    torch.cuda.synchronize()
    return int(20_000_000 / begun.elapsed_time(ended) * milliseconds)

class Sleep(torch.nn.Module):
    '''Keeps the device busy for so many cycles in forward.'''

    def __init__(self, cycles):
        super().__init__()
        self.cycles = cycles
        self.weight = torch.nn.Parameter(torch.ones(8, device="cuda"))

    def forward(self, x):
        torch.cuda._sleep(self.cycles)
        return x * self.weight

def digest(model):
    '''Of all parameters, bit for bit.'''
    content = b"".join(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(content).hexdigest()

def one_rank():
    '''torch.distributed on NCCL with this process alone.'''
    import tempfile
    torch.cuda.set_device(0)
    store = dist.FileStore(tempfile.mktemp(), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here where there is no device."""
    if not torch.cuda.is_available():
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no CUDA device here (make gpu)"))


@pytest.fixture
def note() -> Callable[..., None]:
    """Puts a row into a table of docs/gpu.md, when `make gpu` asks for it."""

    def write(table: str, **row: object) -> None:
        path = os.environ.get("TLKIT_GPU_NOTES")
        if path:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"table": table, "row": row}) + "\n")

    return write


@pytest.fixture
def script() -> Answer:
    """Runs a script in a process of its own, whose settings CUDA reads when it begins; returns what it hands to `answer`."""

    def run(code: str, environment: Mapping[str, str] | None = None, timeout_s: float = 150) -> object:
        settings = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})}
        command = [sys.executable, "-c", _PREAMBLE + textwrap.dedent(code)]
        ended = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout_s, check=False)
        answers = [line for line in ended.stdout.splitlines() if line.startswith("ANSWER ")]
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        assert answers, ended.stdout
        return json.loads(answers[-1].removeprefix("ANSWER "))

    return run
