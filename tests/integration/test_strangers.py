"""What other users of a host find of a job, and what they can do to it."""

import os
import socket
import time
from pathlib import Path

from .ranks import finish_ranks, run_ranks, start_ranks

_LATE = """
if os.environ["HOROVOD_RANK"] == "1":
    while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
hvd.init()
answer(hvd.allgather_object(hvd.rank()))
"""


def _listening(process_id: int) -> list[str]:
    """Addresses at which a process listens by TCP."""
    opened = {str(link.readlink()) for link in Path(f"/proc/{process_id}/fd").iterdir()}
    lines = [*Path("/proc/net/tcp").read_text().splitlines(), *Path("/proc/net/tcp6").read_text().splitlines()]
    fields = [line.split() for line in lines]
    return [each[1] for each in fields if each[3] == "0A" and f"socket:[{each[9]}]" in opened]


def _wait_for_socket(folder: Path) -> Path:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [path for path in folder.glob("tlkit-*/*") if path.is_socket()]
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError("rank 0 listens nowhere")


def test_a_job_that_waits_for_a_rank_listens_in_a_folder_of_its_user_alone(tmp_path: Path) -> None:
    """Not on the network; and silent connections of the same user do not keep the others out."""
    go = tmp_path / "go"
    ranks = start_ranks(2, _LATE, {"TMPDIR": str(tmp_path), "GO": str(go)})
    try:
        path = _wait_for_socket(tmp_path)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.parent.stat().st_uid == os.geteuid()
        assert _listening(ranks[0].pid) == []
        idle = [socket.socket(socket.AF_UNIX) for _ in range(50)]
        for connection in idle:
            connection.connect(str(path))
        idle[0].sendall(b"\x98\xa5hello\xa1t\x01" + b"\x91" * 5000)
    finally:
        go.touch()
        results = finish_ranks(ranks)
    for connection in idle:
        connection.close()

    assert [result.answer for result in results] == [[0, 1], [0, 1]], results
    assert not path.exists()


def test_an_object_without_the_seal_of_the_job_is_not_unpickled(tmp_path: Path) -> None:
    """Gloo's connections prove nothing: what comes over them may be anybody's."""
    script = """
    from tlkit.runtime.core import engine
    from tlkit.runtime.core.sealing import Seal
    hvd.init()
    class Evil:
        def __reduce__(self):
            return open, (os.environ["MARK"], "w")
    if hvd.rank() == 0:
        engine.current().seal = Seal(b"a stranger's")
    try:
        hvd.broadcast_object(Evil())
        said = "" if hvd.rank() == 0 else "unpickled"
    except hvd.HorovodInternalError as error:
        said = str(error)
    answer(said)
    hvd.shutdown()
    """
    results = run_ranks(2, script, {"MARK": str(tmp_path / "mark")})

    assert results[0].answer == ""
    assert "does not carry the seal of this job" in str(results[1].answer)
    assert not (tmp_path / "mark").exists()
