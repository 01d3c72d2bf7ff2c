"""Counters on the timeline: of processes and hosts for real, of devices through the real pynvml on a library of our own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tlkit.timeline import open_trace

from .ranks import REPOSITORY, run_ranks

_ASK = """
import json, logging, os, sys, time
from tlkit.runtime.instrument.own_device import InUse
from tlkit.runtime.instrument.samplers import open_device
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
source = open_device(InUse(0, "") if sys.argv[1] == "0" else InUse(int(sys.argv[1]), ""))
samples = []
for told in json.loads(sys.argv[2]) if source else []:
    with open(os.environ["NVML_STUB"], "w") as file:
        file.writelines(f"{key}={value}\\n" for key, value in told.items())
    time.sleep(0.12)
    samples.append(dict(source(2.0)))
print(json.dumps(samples if source else None))
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


def ask(library: Path | None, readings: list[dict[str, int]], index: int, tmp_path: Path) -> Any:
    """What a source samples while the device answers one after the other of `readings`, and what it logs."""
    told = tmp_path / "readings"
    told.write_text("".join(f"{key}={value}\n" for key, value in (readings or [{}])[0].items()))
    settings = {**os.environ, "NVML_STUB": str(told), "PYTHONPATH": str(REPOSITORY)}
    if library is not None:
        settings["LD_LIBRARY_PATH"] = str(library)
    command = [sys.executable, "-c", _ASK, str(index), json.dumps(readings)]
    ended = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def test_a_devices_readings_are_in_the_units_that_they_say(library: Path, tmp_path: Path) -> None:
    """What the device does not have is left out."""
    readings = {
        "utilisation": 87, "memory_utilisation": 40, "memory": 1234567, "power": 350_500, "power_limit": 700_000, "clock": 1410,
        "memory_clock": 2619, "temperature": 61, "reasons": 0x40, "field82": 77, "replays": 5,
    }  # fmt: skip
    (first, second), _ = ask(library, [readings, readings | {"replays": 8}], 0, tmp_path)

    assert first == {
        "gpu utilisation %": 87, "gpu memory utilisation %": 40, "gpu memory used bytes": 1234567, "gpu power W": 350.5,
        "gpu power limit W": 700, "gpu sm clock MHz": 1410, "gpu memory clock MHz": 2619, "gpu temperature C": 61,
        "gpu memory temperature C": 77, "gpu throttled": 1, "gpu slowed by heat (hardware)": 1, "gpu pcie replays": 0,
    }  # fmt: skip
    assert second == first | {"gpu pcie replays": 3}


def test_totals_of_the_driver_count_from_the_beginning_and_links_by_the_second(library: Path, tmp_path: Path) -> None:
    """A total that was reset is nothing for once."""
    before = {
        "energy": 1_000_000,
        "corrected": 7,
        "uncorrected": 1,
        "field138": 1000,
        "field139": 0,
        "field197": 50,
        "field198": 90,
    }
    after = {
        "energy": 1_700_000,
        "corrected": 9,
        "uncorrected": 1,
        "field138": 3000,
        "field139": 0,
        "field197": 250,
        "field198": 10,
    }
    (_, second), _ = ask(library, [before, after], 0, tmp_path)

    assert second == {
        "gpu energy J": 700, "gpu corrected memory errors": 2, "gpu uncorrected memory errors": 0,
        "gpu nvlink sent bytes/s": 1_024_000, "gpu nvlink received bytes/s": 0, "gpu pcie sent bytes/s": 100,
    }  # fmt: skip


def test_devices_without_totals_of_the_bus_are_asked_for_the_moment(library: Path, tmp_path: Path) -> None:
    """Volta and before."""
    (_, second), _ = ask(library, [{"pcie_sent_now": 3, "pcie_received_now": 4}] * 2, 0, tmp_path)

    assert second == {"gpu pcie sent bytes/s": 3072, "gpu pcie received bytes/s": 4096}


def test_what_the_multiprocessors_do_comes_from_two_samples(library: Path, tmp_path: Path) -> None:
    """On Hopper and later; the links are read there, too, and not twice."""
    gpm = {
        "gpm": 1,
        "gpm2": 93,
        "gpm3": 41,
        "gpm5": 60,
        "gpm10": 72,
        "gpm20": 2,
        "gpm21": 3,
        "gpm60": 4,
        "gpm61": 5,
        "field138": 1,
    }
    samples, _ = ask(library, [gpm | {"gpm_time": 1}, gpm | {"gpm_time": 2}, gpm | {"gpm_time": 3}], 0, tmp_path)

    assert samples[2] == {
        "gpu sm activity %": 93, "gpu sm occupancy %": 41, "gpu tensor activity %": 60, "gpu dram activity %": 72,
        "gpu pcie sent bytes/s": 2 << 20, "gpu pcie received bytes/s": 3 << 20, "gpu nvlink sent bytes/s": 5 << 20,
        "gpu nvlink received bytes/s": 4 << 20,
    }  # fmt: skip


def test_a_slice_of_a_device_is_said_once(library: Path, tmp_path: Path) -> None:
    """Its own are memory and activity; the rest is the whole device's, and utilisation nobody's."""
    readings = {"mig": 1, "utilisation": 87, "memory": 99, "power": 350_500, "gpm": 1, "gpm2": 12}
    samples, log = ask(library, [readings | {"gpm_time": number} for number in (1, 2, 3)], 0, tmp_path)

    assert samples[2] == {"gpu memory used bytes": 99, "gpu power W": 350.5, "gpu sm activity %": 12}
    assert log.count("a slice of a GPU (MIG)") == 1


def test_reasons_come_and_go(library: Path, tmp_path: Path) -> None:
    """By name, and 0 when they are over; the power cap is one, and no throttling."""
    (idle, capped, hot, fine), _ = ask(library, [{"reasons": each} for each in (0x1, 0x4, 0x24, 0x0)], 0, tmp_path)

    assert idle == {"gpu throttled": 0}
    assert capped == {"gpu throttled": 0, "gpu slowed by its power cap": 1}
    assert hot == {"gpu throttled": 1, "gpu slowed by its power cap": 1, "gpu slowed by heat": 1}
    assert fine == {"gpu throttled": 0, "gpu slowed by its power cap": 0, "gpu slowed by heat": 0}


def test_errors_of_the_device_are_on_the_timeline_and_in_the_log(library: Path, tmp_path: Path) -> None:
    """An Xid when the driver reports it; a device that is gone once, and what is refused once."""
    refused = {"utilisation.error": 4, "memory.error": 4}
    samples, log = ask(
        library, [{"xid": 79, "power": 1000}, {"xid": 79, "power": 1000}, {"all": 15}, {"all": 15}], 0, tmp_path
    )
    _, of_refused = ask(library, [refused, refused], 0, tmp_path)

    assert samples == [{"gpu power W": 1, "gpu xid": 79}, {"gpu power W": 1}, {"gpu lost": 1}, {}]
    assert log.count("error 79") == log.count("fallen off the bus") == 1
    assert of_refused.count("does not let this user read everything") == 1


def test_without_a_device_or_a_library_nothing_is_said(library: Path, tmp_path: Path) -> None:
    """No error, no counters."""
    assert ask(library, [], 7, tmp_path) == (None, "")
    assert ask(None, [], 0, tmp_path) == (None, "")


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
    found: Any = counters.groupby(["rank", "name"], observed=True)["value"].agg(["size", "max"])

    for rank in (0, 1):
        assert found.loc[(rank, "process cpu %"), "size"] >= 3
        assert found.loc[(rank, "process memory bytes"), "max"] > 50e6
    assert found.loc[(0, "host cpu %"), "size"] >= 3
    assert (1, "host cpu %") not in found.index
