"""Random lives of the runtime: whatever ranks do together, in whatever order and however late, every value is right."""

import random
from pathlib import Path

import pytest

from tests.fuzzing import examples
from tlkit.timeline import open_trace

from .ranks import run_ranks

#: `same` is random, the same on all ranks, and says what they do; `own` is each rank's, and says when.
SCRIPT = """
import faulthandler, random
faulthandler.dump_traceback_later(50)
seed = int(os.environ["SEED"])
same, own = random.Random(seed), random.Random(f"{seed} {os.environ['HOROVOD_RANK']}")

def nap():
    if own.random() < 0.4:
        time.sleep(own.random() * own.choice([0.001, 0.01, 0.1]))

def allreduce(name, sets):
    count = same.randint(1, 5000)
    assert hvd.allreduce(torch.full((count,), float(rank)), op=hvd.Sum, name=name).sum().item() == count * sum(range(size))

def many(name, sets):
    order = list(range(same.randint(1, 30)))
    polls, handles = same.random() < 0.5, {}
    own.shuffle(order)
    for i in order:
        handles[i] = hvd.allreduce_async(torch.full((i + 1,), float(rank + i)), op=hvd.Sum, name=f"{name}.{i}")
        if own.random() < 0.1:
            nap()
    own.shuffle(order)
    for i in order:
        while polls and not hvd.poll(handles[i]):
            time.sleep(0.0005)
        assert hvd.synchronize(handles[i]).tolist() == [sum(r + i for r in range(size))] * (i + 1)

def grouped(name, sets):
    first, second = hvd.grouped_allreduce([torch.full((3,), float(rank)), torch.full((4,), 2.0 * rank)], op=hvd.Sum, name=name)
    assert (first.sum().item(), second.sum().item()) == (3 * sum(range(size)), 8 * sum(range(size)))

def allgather(name, sets):
    assert hvd.allgather(torch.full((rank + 1,), rank), name=name).tolist() == [r for r in range(size) for _ in range(r + 1)]

def broadcast(name, sets):
    root = same.randrange(size)
    assert hvd.broadcast(torch.tensor([rank]), root, name=name).item() == root

def alltoall(name, sets):
    assert hvd.alltoall(torch.arange(size) + rank, name=name).tolist() == [r + rank for r in range(size)]

def reducescatter(name, sets):
    assert hvd.reducescatter(torch.full((size,), float(rank)), op=hvd.Sum, name=name).tolist() == [sum(range(size))]

def objects(name, sets):
    assert hvd.allgather_object((rank, name)) == [(r, name) for r in range(size)]

def barrier(name, sets):
    hvd.barrier()

def change_sets(name, sets):
    members = sorted(same.sample(range(size), same.randint(1, size - 1)))
    if all(found.ranks != members for found in sets):
        sets.append(hvd.add_process_set(members))
    if same.random() < 0.3:
        assert hvd.remove_process_set(sets.pop(0))

def in_a_set(name, sets):
    if sets and (chosen := same.choice(sets)).included():
        assert hvd.allreduce(torch.ones(5), op=hvd.Sum, name=name, process_set=chosen).tolist() == [len(chosen.ranks)] * 5

acts = [allreduce, many, many, grouped, allgather, broadcast, alltoall, reducescatter, objects, barrier, change_sets, in_a_set]
for life in range(same.randint(1, 4)):
    nap()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if same.random() < 0.5:
        hvd.start_timeline(f"{os.environ['FOLDER']}/{life}.json", mark_cycles=same.random() < 0.5)
    sets = []
    for number in range(same.randint(0, 12)):
        nap()
        same.choice(acts)(f"{life}.{number}", sets)
    end = same.choice(["barrier", "pending", "join", "together"])
    # The first rank that shuts down ends the job for all, so they wait for each other; but not always when nothing is left to do.
    if end != "together" or sets:
        hvd.barrier()
    if end == "pending":
        try:
            hvd.allreduce_async(torch.ones(100), name="left")
        except hvd.HorovodInternalError as error:
            assert "has shut down" in str(error)
    if end == "join":
        hvd.join()
    nap()
    hvd.shutdown()
faulthandler.cancel_dump_traceback_later()
"""

SETTINGS = {
    "HOROVOD_CACHE_CAPACITY": ["0", "2", "5"],
    "HOROVOD_FUSION_THRESHOLD": ["0", "100", "20000"],
    "HOROVOD_CYCLE_TIME": ["0.1", "5", "20"],
    "HOROVOD_AUTOTUNE": ["1"],
    "HOROVOD_DISABLE_GROUP_FUSION": ["1"],
    "HOROVOD_TIMELINE_FORMAT": ["horovod"],
}


@pytest.mark.parametrize("seed", range(examples(4)))
def test_a_random_life(tmp_path: Path, seed: int) -> None:
    """Every result, however the ranks are apart; a timeline that was recorded keeps the rules of its format."""
    chance = random.Random(seed)
    size = chance.choice([2, 3, 4])
    settings = {name: chance.choice(values) for name, values in SETTINGS.items() if chance.random() < 0.4}
    fixed = {"HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_LOG_LEVEL": "error"}
    run_ranks(size, SCRIPT, fixed | settings | {"SEED": str(seed), "FOLDER": str(tmp_path)}, timeout_s=60)
    for path in tmp_path.glob("?.json"):
        trace = open_trace(path)
        trace.check()
        assert trace.meta.size == size or "HOROVOD_TIMELINE_FORMAT" in settings
