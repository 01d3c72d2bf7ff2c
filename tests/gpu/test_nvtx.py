"""Whose ranges the kernels belong to, as Nsight Systems sees it; where it is not installed that is skipped."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import REPOSITORY
from tlkit.timeline import open_trace

_SCRIPT = """
import torch
import tlkit
tlkit.instrument()
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(256, 1024, device="cuda")
for _ in range(20):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize()
"""


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_kernels_belong_to_the_phases_that_launch_them(note: Any, tmp_path: Path) -> None:
    """Those of backward too, which autograd's own thread launches."""
    report = tmp_path / "rank0"
    profile = [
        "nsys",
        "profile",
        "-t",
        "cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "-o",
        str(report),
        "-f",
        "true",
    ]
    settings = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOROVOD_TIMELINE": str(tmp_path / "t.json")}
    subprocess.run(
        [*profile, sys.executable, "-c", _SCRIPT], env=settings, check=True, timeout=120, capture_output=True
    )
    export = ["nsys", "export", "--type", "sqlite", "-f", "true", "-o", f"{report}.sqlite", f"{report}.nsys-rep"]
    subprocess.run(export, check=True, timeout=60, capture_output=True)
    trace = open_trace(f"{report}.sqlite")
    kernels = trace.spans[trace.spans["lane_kind"] == "compute"]
    counted = kernels.groupby("category", observed=True).size()
    for category, count in counted.items():
        note("nsight", category=str(category), kernels=int(count))

    assert min(counted.get(category, 0) for category in ("forward", "backward", "optimizer")) >= 20
