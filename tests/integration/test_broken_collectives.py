"""Ranks that get stuck, stop or die inside the transport: the others end soon, and say who it was."""

import subprocess

import pytest

from .ranks import finish_ranks, start_ranks

#: Longer than the test waits: whoever ends before that has not waited for Gloo to give up.
PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}

STALLS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}

#: What rank 1 does in the middle of a collective, or while it connects; `error` is what a rank raises.
PREAMBLE = """
import signal, threading
from tlkit.runtime.torch.data_plane.rendezvous import RankStore
from tlkit.runtime.torch.data_plane.transports.gloo import GlooTransport

def start():
    try:
        hvd.init()
    except ValueError as error:
        answer(str(error))
        os._exit(0)
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
    GlooTransport.allreduce = fault
try:
    hvd.allreduce(tensor, name="x")
except hvd.HorovodInternalError as error:
    hvd.shutdown()
    answer([str(error), [thread.name for thread in threading.enumerate() if thread.name.startswith("tlkit")]])
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
    answer(str(error))
os._exit(0)
"""
)


def others_of(ranks: list["subprocess.Popen[str]"]) -> list[object]:
    """The answers of all ranks but rank 1, which is ended after them."""
    try:
        return [finish_ranks([ranks[rank]], 80)[0].answer for rank in (0, 2)]
    finally:
        ranks[1].kill()
        ranks[1].communicate()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("time.sleep(1000)", "did not finish allreduce.x within"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "rank 1 on "),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 on "),
        ("raise MemoryError('no room')", "rank 1 on "),
    ],
)
def test_a_collective_ends_when_the_job_does(fault: str, cause: str) -> None:
    """Not when the transport gives up: those that wait in it raise, shut down and leave no thread behind."""
    answers = others_of(start_ranks(3, COLLECTIVE.replace("FAULT", fault), PATIENT | STALLS))

    for answer in answers:
        assert isinstance(answer, list)
        assert cause in answer[0]
        assert answer[1] == []


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (
            "raise RuntimeError('no route to anybody')",
            "rank 1 cannot connect gloo to the other ranks: no route to anybody",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 on "),
        ("plain(self, key, value), os.kill(os.getpid(), signal.SIGKILL)", "rank 1 on "),
    ],
)
def test_init_ends_on_all_ranks_when_one_cannot_connect(fault: str, cause: str) -> None:
    """Those that wait for it in the transport's constructor hear of it by the control plane."""
    for answer in others_of(start_ranks(3, CONNECTING.replace("FAULT", fault), PATIENT)):
        assert cause in str(answer)


def test_init_names_a_rank_that_is_stopped_while_it_connects() -> None:
    """After twice the transport's timeout, since it might go on."""
    fault = "plain(self, key, value), os.kill(os.getpid(), signal.SIGSTOP)"
    ranks = start_ranks(3, CONNECTING.replace("FAULT", fault), {"HOROVOD_GLOO_TIMEOUT_SECONDS": "2"})
    for answer in others_of(ranks):
        assert "rank 1 on " in str(answer)
        assert "did not answer: its process is stopped" in str(answer)


def test_what_else_is_connected_stays_so() -> None:
    """Only the transport's own connections are cut."""
    connect = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
"""
    try_it = """
    client.sendall(b"x")
    answer(server.recv(1).decode())
"""
    script = connect + COLLECTIVE.replace("FAULT", "os.kill(os.getpid(), signal.SIGSTOP)") + try_it

    assert others_of(start_ranks(3, script, PATIENT | STALLS)) == ["x", "x"]
