"""The same spans as NVTX ranges: counted by a real consumer of the NVTX ABI, compiled here."""

import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from tlkit.timeline import open_trace

from .ranks import run_ranks

SOURCE = Path(__file__).with_name("nvtx_injection.c")

SCRIPT = """
hvd.init()
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
data = torch.utils.data.TensorDataset(torch.randn(40, 64))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""

#: Spans of threads; what is written after the fact (workers, tensors' lives) is in the timeline alone.
COMPARED = (
    "FORWARD", "BACKWARD", "OPTIMIZER_STEP", "SYNCHRONIZE", "DATA_WAIT", "DATA_FETCH", "DATASET", "COLLATE",
    "ALLREDUCE", "SHM_ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER",
)  # fmt: skip


@pytest.fixture(scope="module")
def injection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The consumer, compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("injection") / "libnvtxtest.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(SOURCE)], check=True)
    return library


def ranges_of(folder: Path) -> dict[int, list[list[str]]]:
    """The notes of every process that wrote some, by process id."""
    return {
        int(path.suffix[1:]): [line.split("\t") for line in path.read_text().splitlines()]
        for path in folder.glob("nvtx.log.*")
        if path.stat().st_size
    }


def test_every_span_is_a_range_with_its_length(injection: Path, tmp_path: Path) -> None:
    """As many as in the timeline, by name, in our domain, pushed and popped in pairs, and as long as the spans are."""
    environment = {
        "NVTX_INJECTION64_PATH": str(injection),
        "NVTX_TEST_LOG": str(tmp_path / "nvtx.log"),
        "HOROVOD_TIMELINE": str(tmp_path / "t.json"),
    }
    run_ranks(2, SCRIPT, environment)
    spans = open_trace(tmp_path / "t.json").spans
    noted = ranges_of(tmp_path)
    assert len(noted) == 2

    recorded = spans[spans["name"].isin(COMPARED) & (spans["lane_kind"] != "tensor")]
    in_timeline = Counter(recorded["name"])
    in_nvtx: Counter[str] = Counter()
    lengths_ns: defaultdict[str, list[int]] = defaultdict(list)
    for lines in noted.values():
        stacks: dict[str, list[list[str]]] = {}
        for line in lines:
            what, domain, name, _, _, thread, at_ns = line
            assert domain == "tlkit"
            if what == "push":
                in_nvtx[name] += 1
                stacks.setdefault(thread, []).append(line)
            elif what == "pop":
                begun = stacks[thread].pop()
                lengths_ns[begun[2]].append(int(at_ns) - int(begun[6]))
        assert not any(stacks.values())
    # The batch that the loader no longer has is asked for as well: a range, but no wait for data.
    in_nvtx["DATA_WAIT"] -= 2

    assert {name: in_nvtx[name] for name in COMPARED} == {name: in_timeline[name] for name in COMPARED}
    for name in ("FORWARD", "BACKWARD", "SHM_ALLREDUCE"):
        expected_ns = np.sort(recorded.loc[recorded["name"] == name, "dur_ns"].to_numpy())
        apart_ns = np.abs(np.sort(lengths_ns[name]) - expected_ns)
        # Another process may have the core between the two times that one of them takes, but not of most.
        assert np.median(apart_ns) <= 200_000 + 0.05 * np.median(expected_ns)


def test_collectives_carry_their_bytes_and_steps_are_ranges_of_their_own(injection: Path, tmp_path: Path) -> None:
    """Numbers travel in the payload, so that names stay the same."""
    environment = {"NVTX_INJECTION64_PATH": str(injection), "NVTX_TEST_LOG": str(tmp_path / "nvtx.log")}
    run_ranks(1, SCRIPT, environment)
    ((lines,)) = ranges_of(tmp_path).values()
    reduced = sum(int(line[3]) for line in lines if line[0] == "push" and line[2] == "ALLREDUCE")
    steps = [int(line[3]) for line in lines if line[0] == "start" and line[2] == "STEP"]

    assert reduced == 0  # one rank alone has nothing to reduce
    assert steps == list(range(11))
    # A tool has a range that nobody ends last until the end of the process.
    begun = {line[4] for line in lines if line[0] == "start"}
    assert {line[4] for line in lines if line[0] == "end"} == begun


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_have_ranges_of_their_own(method: str, injection: Path, tmp_path: Path) -> None:
    """In a domain that their tool has heard of, with their number; what has no number carries none."""
    environment = {"NVTX_INJECTION64_PATH": str(injection), "NVTX_TEST_LOG": str(tmp_path / "nvtx.log")}
    loader = f"DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context={method!r}, "
    script = SCRIPT.replace("DataLoader(data, batch_size=4", loader).replace(
        "hvd.init()", "import gc\nhvd.init()\ngc.collect()"
    )
    run_ranks(1, script, environment)
    noted = ranges_of(tmp_path)
    fetched = {
        pid: {int(line[3]) for line in lines if line[0] == "push" and line[2] == "DATA_FETCH"}
        for pid, lines in noted.items()
    }
    workers = {pid for pid, numbers in fetched.items() if numbers}

    assert sorted(number for pid in workers for number in fetched[pid]) == [0, 1]
    for pid in workers:
        (first, *_) = noted[pid]
        assert (first[0], first[1]) == ("domain", "tlkit")
    ((of_rank),) = [
        lines for pid, lines in noted.items() if pid not in workers and any(line[0] == "push" for line in lines)
    ]
    payloads = {name: {int(line[3]) for line in of_rank if line[2] == name} for name in ("FORWARD", "DATA_WAIT")}
    assert payloads == {"FORWARD": {-1}, "DATA_WAIT": {2}}
    generations = [int(line[3]) for line in of_rank if line[2] == "GARBAGE_COLLECTION"]
    assert set(generations) <= {1, 2}


def test_ranges_can_be_turned_off(injection: Path, tmp_path: Path) -> None:
    """HOROVOD_DISABLE_NVTX_RANGES=1."""
    environment = {
        "NVTX_INJECTION64_PATH": str(injection),
        "NVTX_TEST_LOG": str(tmp_path / "nvtx.log"),
        "HOROVOD_DISABLE_NVTX_RANGES": "1",
    }
    run_ranks(1, SCRIPT, environment)

    assert ranges_of(tmp_path) == {}
