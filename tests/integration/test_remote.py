"""Traces from a real web server, and from what else fsspec knows."""

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.errors import TraceError, TraceNotFoundError

pytest.importorskip("aiohttp")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Without a line on the console for each request."""

    requests: ClassVar[list[str]] = []

    def log_message(self, *args: object) -> None:
        self.requests.append(f"{self.command} {self.path}")


@pytest.fixture
def server(own_traces: Path, tmp_path: Path) -> Iterator[str]:
    """A folder of traces on a web server."""
    folder = tmp_path / "served"
    folder.mkdir()
    for rank in (0, 1):
        name = f"rank{rank}.json.gz"
        shutil.copy(own_traces / "kineto" / name, folder / name)
    shutil.copy(own_traces / "horovod" / "ops_np2.json.gz", folder / "ops_np2.json.gz")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_url_reads_as_a_file_does(server: str, own_traces: Path) -> None:
    """One file; args as well."""
    trace = open_trace(f"{server}/ops_np2.json.gz")
    local = open_trace(own_traces / "horovod" / "ops_np2.json.gz")
    assert trace.spans.equals(local.spans)
    ranks = open_trace([f"{server}/rank{rank}.json.gz" for rank in (0, 1)])
    assert ranks.meta.ranks == (0, 1)
    assert ranks.raw_args[len(ranks.raw_args) - 1].startswith(b"{")


def test_what_was_copied_is_not_copied_again(server: str, tmp_path: Path) -> None:
    """Unless it has changed."""
    open_trace(f"{server}/ops_np2.json.gz")
    before = sum(request.startswith("GET") and "ops_np2" in request for request in _Quiet.requests)
    open_trace(f"{server}/ops_np2.json.gz")
    assert sum(request.startswith("GET") and "ops_np2" in request for request in _Quiet.requests) == before
    (served,) = tmp_path.glob("served/ops_np2.json.gz")
    os.utime(served, (1, 1))
    open_trace(f"{server}/ops_np2.json.gz")
    assert sum(request.startswith("GET") and "ops_np2" in request for request in _Quiet.requests) == before + 1


def test_a_folder_elsewhere(tmp_path: Path, own_traces: Path) -> None:
    """And a pattern, through fsspec's own files."""
    for rank in (0, 1):
        name = f"rank{rank}.json.gz"
        shutil.copy(own_traces / "kineto" / name, tmp_path / name)
    assert open_trace(f"file://{tmp_path}").meta.ranks == (0, 1)
    assert open_trace(f"file://{tmp_path}/*rank1*").meta.ranks == (1,)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("{server}/nowhere.json", TraceNotFoundError),
        ("http://127.0.0.1:1/t.json", TraceError),
        ("nonsense://host/t.json", TraceError),
        ("file:///proc/nowhere/t.json", TraceNotFoundError),
    ],
)
def test_what_is_not_there_is_one_clear_error(server: str, url: str, kind: type[Exception]) -> None:
    """Whatever the driver raises."""
    with pytest.raises(kind, match="://"):
        open_trace(url.replace("{server}", server))
