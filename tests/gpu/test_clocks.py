"""Whether spans of the device are where CUPTI says that the kernels were, and what NVML's counters cost and say under load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_checks.comparing import compare, on_device, times_of

from tlkit.timeline import open_trace

_SLEEP_MS = 20

_SCRIPT = """
import tlkit
saturated, folder = {saturated}, {folder!r}
model = Sleep(cycles_of({sleep_ms}))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
x = torch.ones(8, device="cuda")
recording = tlkit.instrument(folder + "/t.json")
activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]

def step():
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    if not saturated:
        torch.cuda.synchronize()
        time.sleep(0.01)

for _ in range(5):
    step()
with torch.profiler.profile(activities=activities) as profile:
    for _ in range(50):
        step()
    torch.cuda.synchronize()
time.sleep(1)
profile.export_chrome_trace(folder + "/profile.json")
recording.stop()
answer(True)
"""


@pytest.mark.parametrize("connections", [1, 8, 32])
@pytest.mark.parametrize("saturated", [False, True], ids=["idle", "saturated"])
def test_spans_are_where_cupti_says(
    script: Any, note: Any, tmp_path: Path, connections: int, *, saturated: bool
) -> None:
    """Lengths within 1 %; with one connection an idle stream queues behind kernels, and only what was known before tells the time."""
    code = _SCRIPT.format(saturated=saturated, folder=str(tmp_path), sleep_ms=_SLEEP_MS)
    script(code, {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections), "TLKIT_SAMPLE_SECONDS": "0.2"})
    ours, profile = open_trace(tmp_path / "t.json"), open_trace(tmp_path / "profile.json")
    kernels = times_of(profile, on_device(profile, ["spin_kernel", "sleep"]))
    spans = times_of(ours, on_device(ours, ["FORWARD"]))
    within = spans[(spans[:, 1] > kernels[:, 0].min()) & (spans[:, 0] < kernels[:, 1].max())]
    found = compare(within, kernels)
    counters = ours.counters.groupby("name", observed=True)["value"].max()
    note(
        "clocks",
        connections=connections,
        device="saturated" if saturated else "idle between steps",
        spans=found.pairs,
        largest_length_error=f"{found.largest_duration_error:.2%}",
        median_start_off_us=round(float(np.median(np.abs(found.start_off_ns))) / 1e3, 1),
        largest_start_off_us=round(found.largest_start_off_ns / 1e3, 1),
    )

    assert found.pairs >= 48
    assert found.unmatched <= 2
    assert found.largest_duration_error < 0.01
    assert sum(ours.meta.dropped.values()) == 0
    assert "gpu utilisation %" in counters.index
    assert counters["gpu utilisation %"] > 10
