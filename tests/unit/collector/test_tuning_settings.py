"""Which values tl-tune tries, by what it knows of a run."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tlkit.collector.findings import Finding
from tlkit.collector.tuning.settings import Known, propose, reached
from tlkit.timeline.trials import LoaderSeen

from ..timeline.test_trials import SEEN

LOADER = LoaderSeen(workers=2, prefetch=2, persistent=False, pin_memory=False, is_iterable=False, epochs=1)
MIB = 1 << 20


def finding(cause: str, class_: str = "data", gain: float = 0.5, **evidence: float) -> Finding:
    return Finding(
        class_=class_, cause=cause, ranks=(), predicted_gain=gain, gain_interval=(gain, gain), confidence=0.9,
        evidence=evidence, remedy="", sentence="",
    )  # fmt: skip


def tried(
    name: str,
    *,
    findings: Sequence[Finding] = (),
    launched_here: bool = True,
    has_mpi: bool = False,
    data_ratio: float = 0.0,
    loader: dict[str, Any] | None = None,
    **seen: Any,
) -> list[str]:
    """Values of one setting, in the order in which they are tried."""
    if loader is not None:
        seen["loaders"] = [msgspec.structs.replace(LOADER, **loader)]
    known = Known(
        seen=msgspec.structs.replace(SEEN, **seen),
        findings=findings,
        launched_here=launched_here,
        has_mpi=has_mpi,
        data_ratio=data_ratio,
    )
    return [candidate.value for candidate in propose(known, [name])]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"shares_memory": True}, ["shm"]),
        ({"has_mpi": True}, ["mpi"]),
        ({"has_mpi": False}, []),
        ({"shares_memory": True, "launched_here": False}, []),
        ({"shares_memory": True, "transport": "shm"}, []),
        ({"shares_memory": True, "local_size": 1}, []),
        ({"shares_memory": True, "runtime": "torch"}, []),
        ({"shares_memory": True, "device": "cuda"}, []),
    ],
)
def test_another_transport_replaces_sockets_within_a_host(known: dict[str, Any], expected: list[str]) -> None:
    """Memory that the ranks share goes before MPI, which has to be installed."""
    assert tried("transport", **known) == expected


@pytest.mark.parametrize(
    ("now", "expected"), [(0, ["128 MiB", "8 MiB"]), (16 * MIB, ["128 MiB"]), (128 * MIB, ["8 MiB"])]
)
def test_the_fusion_threshold_moves_away_from_what_it_is(now: int, expected: list[str]) -> None:
    """And is of no use to a single rank, or outside of our runtime."""
    assert tried("fusion", fusion_threshold_nbytes=now) == expected
    assert tried("fusion", fusion_threshold_nbytes=now, local_size=1) == []
    assert tried("fusion", fusion_threshold_nbytes=now, runtime="torch") == []


@pytest.mark.parametrize(
    ("now", "expected"), [(50.0, ["1 ms", "0.1 ms", "5 ms"]), (1.0, ["0.1 ms", "5 ms"]), (4.0, ["1 ms", "0.1 ms"])]
)
def test_cycle_times_near_the_present_one_are_left_out(now: float, expected: list[str]) -> None:
    """Twice or half of it changes little."""
    assert tried("cycle", cycle_time_ms=now) == expected
    assert tried("cycle", cycle_time_ms=now, runtime="torch") == []


def test_threads_are_those_that_the_cores_allow() -> None:
    """A rank's share of its host, or one; a rank on its own may have half of them, and a device needs one at most."""
    assert tried("threads", cores=8, threads=8) == ["4", "1"]
    assert tried("threads", cores=8, threads=1, local_size=1) == ["8", "4"]
    assert tried("threads", cores=8, threads=8, device="cuda") == ["1"]


def test_cores_are_divided_where_there_are_enough() -> None:
    """One for each rank at least."""
    assert tried("binding") == ["cores divided among ranks"]
    assert tried("binding", cores=1) == []
    assert tried("binding", local_size=1) == []


def test_workers_are_as_many_as_hide_what_a_batch_takes() -> None:
    """By the diagnosis: 1.2 times the time of a batch, by that of the rest of the step; then twice as many, then the cores."""
    slow = finding("slow-loader", gain=0.5, fetch_ns=3e7, mean_wait_ns=1e7)

    assert tried("workers", findings=[slow], loader={"workers": 0}, cores=2) == ["4", "8", "1"]
    assert tried("workers", findings=[slow], loader={"workers": 4}, cores=2) == ["8", "1"]
    assert tried("workers", findings=[slow]) == []  # nothing is loaded


def test_workers_without_a_diagnosis_are_fewer_than_the_cores_or_a_first_one() -> None:
    """The latter if there is a wait that it could hide."""
    assert tried("workers", loader={"workers": 8}, cores=2) == ["1"]
    assert tried("workers", loader={"workers": 0}, data_ratio=0.1) == ["1"]
    assert tried("workers", loader={"workers": 0}, data_ratio=0.01) == []
    assert tried("workers", loader={"workers": 1}, cores=2) == []


def test_loaders_of_several_epochs_keep_the_workers_that_they_are_given() -> None:
    """A worker that starts again in each epoch may cost more than it hides."""
    known = Known(
        seen=msgspec.structs.replace(SEEN, loaders=[msgspec.structs.replace(LOADER, workers=0, epochs=3)]),
        findings=(), launched_here=True, has_mpi=False, data_ratio=0.1,
    )  # fmt: skip
    (one,) = propose(known, ["workers"])

    assert one.settings == {"loader.workers": "1", "loader.persistent": "1"}
    assert one.script == "DataLoader(num_workers=1, persistent_workers=True)"


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("prefetch", {"loader": {}, "data_ratio": 0.1}, ["8"]),
        ("prefetch", {"loader": {"prefetch": 4}, "data_ratio": 0.1}, ["16"]),
        ("prefetch", {"loader": {"workers": 0}, "data_ratio": 0.1}, []),
        ("prefetch", {"loader": {}, "data_ratio": 0.0}, []),
        ("prefetch", {"data_ratio": 0.1}, []),
        ("persistent", {"loader": {"epochs": 2}}, ["on"]),
        ("persistent", {"loader": {"epochs": 1}}, []),
        ("persistent", {"loader": {"epochs": 2, "persistent": True}}, []),
        ("persistent", {"loader": {"epochs": 2, "workers": 0}}, []),
        ("pin-memory", {"loader": {}, "device": "cuda"}, ["on"]),
        ("pin-memory", {"loader": {"pin_memory": True}, "device": "cuda"}, []),
        ("pin-memory", {"loader": {}}, []),
        ("hierarchical", {"hosts": 2}, ["on"]),
        ("hierarchical", {"hosts": 2, "local_size": 1}, []),
        ("hierarchical", {}, []),
        ("bucket-view", {"ddp": True}, ["on"]),
        ("bucket-view", {"ddp": True, "bucket_view": True}, []),
        ("bucket-view", {}, []),
        ("bucket-size", {"ddp": True}, ["100 MiB", "5 MiB"]),
        ("bucket-size", {"ddp": True, "bucket_cap_mb": 0.001}, ["100 MiB", "5 MiB"]),
        ("bucket-size", {"ddp": True, "bucket_cap_mb": 100.0}, ["5 MiB"]),
        ("bucket-size", {}, []),
        ("fused-optimizer", {}, ["on"]),
        ("fused-optimizer", {"fused": True}, []),
        ("fused-optimizer", {"fused": None}, []),
        ("compression", {}, ["fp16"]),
        ("compression", {"runtime": "torch", "ddp": True}, ["bf16"]),
        ("compression", {"runtime": "torch"}, []),
        ("compression", {"compression": True}, []),
        ("compression", {"local_size": 1}, []),
    ],
)
def test_settings_are_tried_where_they_apply(name: str, known: dict[str, Any], expected: list[str]) -> None:
    """And nowhere else."""
    assert tried(name, **known) == expected


def test_what_promises_most_goes_first() -> None:
    """A setting whose finding expects nothing counts as one that nobody asks for."""
    known = Known(
        seen=msgspec.structs.replace(SEEN, loaders=[msgspec.structs.replace(LOADER, epochs=2)]),
        findings=[
            finding("worker-start-up", gain=0.1),
            finding("slow-optimizer-step", "compute", 0.3),
            finding("slow-negotiation", "communication", 0.0),
        ],
        launched_here=True, has_mpi=False, data_ratio=0.0,
    )  # fmt: skip
    candidates = propose(known, ["cycle", "persistent", "fused-optimizer"])

    assert [candidate.label for candidate in candidates[:2]] == ["fused-optimizer on", "persistent on"]
    assert [candidate.predicted for candidate in candidates] == [0.3, 0.1, None, None]


def test_a_setting_has_reached_a_run_that_shows_it() -> None:
    """What the ranks cannot see counts as reached."""
    known = Known(
        seen=msgspec.structs.replace(SEEN, ddp=True, device="cuda", loaders=[LOADER]),
        findings=(), launched_here=True, has_mpi=True, data_ratio=0.1,
    )  # fmt: skip
    names = ["prefetch", "pin-memory", "bucket-view", "fused-optimizer", "compression"]
    found = {candidate.name: candidate for candidate in propose(known, names)}
    changed = msgspec.structs.replace(
        known.seen,
        loaders=[msgspec.structs.replace(LOADER, prefetch=8, pin_memory=True)],
        bucket_view=True,
        fused=True,
    )

    assert [name for name in names if reached(found[name], known.seen)] == ["compression"]
    assert [name for name in names if reached(found[name], changed)] == names
