"""Ranks that get stuck, stop or die inside the transport: the others end soon, and say who it was."""

from pathlib import Path

import pytest

from .ranks import fork_ranks

#: Longer than the test waits: whoever ends before that has not waited for Gloo to give up.
PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}

STALLS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}

#: What rank 1 does in the middle of a collective, or while it connects; `error` is what a rank raises.
PREAMBLE = """
import signal, threading
from tlkit.runtime.torch.data_plane.rendezvous import RankStore
from tlkit.runtime.torch.data_plane.transports.gloo import GlooTransport
from tlkit.runtime.torch.data_plane.transports.shared_memory import SharedMemoryTransport

rank = int(os.environ["HOROVOD_RANK"])
folder = os.environ["FOLDER"]
open(f"{folder}/{rank}.pid", "w").write(str(os.getpid()))

def finish(value):
    answer(value)
    open(f"{folder}/{rank}.done", "w").close()
    if rank == 0:  # the last one ends rank 1, however it is
        while not os.path.exists(f"{folder}/2.done"):
            time.sleep(0.01)
        try:
            os.kill(int(open(f"{folder}/1.pid").read()), signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(0)

def start():
    try:
        hvd.init()
    except ValueError as error:
        finish(str(error))
"""

COLLECTIVE = (
    PREAMBLE
    + """
start()
tensor = torch.ones(1_000_000)
hvd.allreduce(tensor, name="x")
def fault(*_):
    FAULT
if hvd.rank() == 1:
    GlooTransport.allreduce = SharedMemoryTransport.allreduce = fault
try:
    hvd.allreduce(tensor, name="x")
except hvd.HorovodInternalError as error:
    hvd.shutdown()
    finish([str(error), [thread.name for thread in threading.enumerate() if thread.name.startswith("tlkit")]])
"""
)

CONNECTING = (
    PREAMBLE
    + """
plain = RankStore.set
def fault(self, key, value):
    FAULT
if os.environ["HOROVOD_RANK"] == "1":
    RankStore.set = fault
start()
try:
    hvd.barrier()  # whoever was connected before it happened hears of it here
except hvd.HorovodInternalError as error:
    finish(str(error))
os._exit(0)
"""
)


def answers_of_others(script: str, folder: Path, environment: dict[str, str], transport: str = "gloo") -> list[object]:
    """What ranks 0 and 2 say; rank 1 is at fault."""
    environment = environment | {"FOLDER": str(folder), "HOROVOD_CPU_OPERATIONS": transport}
    results = fork_ranks(3, script, environment, 150)
    return [results[rank].answer for rank in (0, 2)]


@pytest.mark.parametrize("transport", ["gloo", "shm"])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("time.sleep(1000)", "did not finish allreduce.x within"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "rank 1 on "),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 on "),
        ("raise MemoryError('no room')", "rank 1 on "),
    ],
)
def test_a_collective_ends_when_the_job_does(fault: str, cause: str, transport: str, tmp_path: Path) -> None:
    """Not when the transport gives up: those that wait in it raise, shut down and leave no thread behind."""
    answers = answers_of_others(COLLECTIVE.replace("FAULT", fault), tmp_path, PATIENT | STALLS, transport)

    for answer in answers:
        assert isinstance(answer, list)
        assert cause in answer[0]
        assert answer[1] == []


@pytest.mark.parametrize("transport", ["gloo", "shm"])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (
            "raise RuntimeError('no route to anybody')",
            "rank 1 cannot connect TRANSPORT to the other ranks: no route to anybody",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 on "),
        ("plain(self, key, value), os.kill(os.getpid(), signal.SIGKILL)", "rank 1 on "),
    ],
)
def test_init_ends_on_all_ranks_when_one_cannot_connect(fault: str, cause: str, transport: str, tmp_path: Path) -> None:
    """Those that wait for it in the transport's constructor hear of it by the control plane."""
    for answer in answers_of_others(CONNECTING.replace("FAULT", fault), tmp_path, PATIENT, transport):
        assert cause.replace("TRANSPORT", transport) in str(answer)


def test_init_names_a_rank_that_is_stopped_while_it_connects(tmp_path: Path) -> None:
    """After twice the transport's timeout, since it might go on."""
    fault = "plain(self, key, value), os.kill(os.getpid(), signal.SIGSTOP)"
    script = CONNECTING.replace("FAULT", fault)
    # Others may have been connected by then, and meet it in the barrier.
    for answer in answers_of_others(script, tmp_path, STALLS | {"HOROVOD_GLOO_TIMEOUT_SECONDS": "2"}):
        assert "rank 1 on " in str(answer)
        assert "its process is stopped" in str(answer)


def test_a_sum_of_two_ranks_ends_when_the_job_does(tmp_path: Path) -> None:
    """They add up over a connection of their own, which is cut as well."""
    script = """
    import signal
    from tlkit.runtime.torch.data_plane.transports.gloo import GlooTransport

    hvd.init()
    tensor = torch.ones(1_000_000)
    hvd.allreduce(tensor, name="x")
    open(f"{os.environ['FOLDER']}/{hvd.rank()}.pid", "w").write(str(os.getpid()))
    if hvd.rank() == 1:
        GlooTransport.allreduce = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    try:
        hvd.allreduce(tensor, name="x")
    except hvd.HorovodInternalError as error:
        answer(str(error))
    os.kill(int(open(f"{os.environ['FOLDER']}/1.pid").read()), signal.SIGKILL)
    os._exit(0)
    """
    environment = PATIENT | STALLS | {"FOLDER": str(tmp_path), "HOROVOD_CPU_OPERATIONS": "gloo"}

    answer = fork_ranks(2, script, environment, 150)[0].answer

    assert "rank 1 on " in str(answer)
    assert "its process is stopped" in str(answer)


def test_what_else_is_connected_stays_so(tmp_path: Path) -> None:
    """Only the transport's own connections are cut."""
    connect = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
"""
    try_it = """
    client.sendall(b"x")
    finish(server.recv(1).decode())
"""
    stopped = COLLECTIVE.replace("FAULT", "os.kill(os.getpid(), signal.SIGSTOP)")
    script = connect + stopped[: stopped.index("    hvd.shutdown()")] + try_it

    assert answers_of_others(script, tmp_path, PATIENT | STALLS) == ["x", "x"]
