"""Counters on the timeline: of processes and hosts for real, of devices through the real pynvml on a library of our own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tlkit.timeline import open_trace

from .ranks import REPOSITORY, run_ranks

_ASK = """
import json, sys
from tlkit.runtime.instrument.own_device import InUse
from tlkit.runtime.instrument.samplers import open_device
source = open_device(InUse(int(sys.argv[1]), ""))
print(json.dumps(None if source is None else [dict(source(1.0)), dict(source(1.0))]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnvidia-ml.so.1."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_stub.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


def ask(library: Path | None, readings: dict[str, int], index: int, tmp_path: Path) -> object:
    told = tmp_path / "readings"
    told.write_text("".join(f"{key}={value}\n" for key, value in readings.items()))
    settings = {**os.environ, "NVML_STUB": str(told), "PYTHONPATH": str(REPOSITORY)}
    if library is not None:
        settings["LD_LIBRARY_PATH"] = str(library)
    ended = subprocess.run(
        [sys.executable, "-c", _ASK, str(index)], env=settings, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_devices_readings_are_in_the_units_that_they_say(library: Path, tmp_path: Path) -> None:
    """What the device does not have is left out from then on."""
    readings = {"utilisation": 87, "memory": 1234567, "power": 350_500, "clock": 1410, "reasons": 0x40}
    first, second = ask(library, readings, 0, tmp_path)  # type: ignore[misc]

    assert first == second
    assert first["gpu utilisation %"] == 87
    assert first["gpu memory used bytes"] == 1234567
    assert first["gpu power W"] == 350.5
    assert first["gpu sm clock MHz"] == 1410
    assert first["gpu throttled"] == 1
    assert "gpu pcie sent bytes/s" not in first
    idle = ask(library, readings | {"reasons": 0x1}, 0, tmp_path)
    assert idle[0]["gpu throttled"] == 0  # type: ignore[index]


def test_without_a_device_or_a_library_nothing_is_said(library: Path, tmp_path: Path) -> None:
    """No error, no counters."""
    assert ask(library, {}, 7, tmp_path) is None
    assert ask(None, {}, 0, tmp_path) is None


def test_process_and_host_are_on_the_timeline(tmp_path: Path) -> None:
    """Five times a second here; the host once, by its first rank."""
    script = """
    hvd.init()
    for _ in range(15):
        hvd.allreduce(torch.ones(1000), name="x")
        time.sleep(0.1)
    hvd.shutdown()
    """
    run_ranks(2, script, {"HOROVOD_TIMELINE": str(tmp_path / "t.json"), "TLKIT_SAMPLE_SECONDS": "0.2"})
    counters = open_trace(tmp_path / "t.json").counters
    found = counters.groupby(["rank", "name"], observed=True)["value"].agg(["size", "max"])

    for rank in (0, 1):
        assert found.loc[(rank, "process cpu %"), "size"] >= 3
        assert found.loc[(rank, "process memory bytes"), "max"] > 50e6
    assert found.loc[(0, "host cpu %"), "size"] >= 3
    assert (1, "host cpu %") not in found.index
