"""`tl-collect push`: it ends when everything is there, or says what is not; whatever the network or the collector does meanwhile."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tlkit.collector.service.mirror import Mirror

from .ranks import REPOSITORY, free_port
from .test_collector import COLLECT, ask, collector, start


def shard(run_id: str, lines: int) -> str:
    """As a rank writes it, as far as the collector looks."""
    head = {"name": "tlkit_shard", "ph": "M", "pid": 0, "tid": 0, "ts": 0, "args": {"run_id": run_id, "rank": 0}}
    return "[\n" + json.dumps(head) + ",\n" + "".join(f'{{"n": {number}}},\n' for number in range(lines))


def push(*arguments: str, timeout: float = 60, **settings: str) -> subprocess.CompletedProcess[str]:
    """To its end."""
    return subprocess.run(
        [*COLLECT, "push", *arguments], capture_output=True, text=True, timeout=timeout, check=False,
        cwd=REPOSITORY, env={**os.environ, **settings},
    )  # fmt: skip


def pushing(*arguments: str) -> subprocess.Popen[str]:
    """It goes on until it is ended."""
    return subprocess.Popen(
        [*COLLECT, "push", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
    )


def wait_for(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def line_of(process: subprocess.Popen[str], pattern: str) -> str:
    """The first line of its complaints that matches."""
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"it never said {pattern}")


class Broken:
    """A server that gives each question the next of some answers, and then the last again and again."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                data = b""
                while b"\r\n\r\n" not in data:
                    data += connection.recv(65536)
                length = re.search(rb"Content-Length: (\d+)", data, re.IGNORECASE)
                missing = (int(length[1]) if length else 0) - len(data.partition(b"\r\n\r\n")[2])
                while missing > 0:
                    missing -= len(connection.recv(65536))
                self.asked += 1
                connection.sendall(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    def close(self) -> None:
        self._listening.close()


def answer(content: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(content) if length is None else length
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(), size, content,
    )  # fmt: skip


def is_kept(path: Path, content: str) -> bool:
    return path.exists() and path.read_text() == content


@pytest.mark.parametrize(
    "broken",
    [
        answer(b'{"si', length=18),
        answer(b'{"size": 12'),
        answer(b""),
        b"",
        b"HTTP/1.1 2",
        b"nonsense\r\n\r\n",
        answer(b'{"error": "later"}', "503 Service Unavailable"),
        answer(b'{"error": "the', "507 Insufficient Storage", length=50),
    ],
)
def test_half_an_answer_is_asked_for_again(broken: bytes, tmp_path: Path) -> None:
    """Whatever the point at which the collector dies; in the end everything is there."""
    path = tmp_path / "t.json"
    path.write_text(shard("ab" * 8, 10))
    size = path.stat().st_size
    nothing, all_of_it = (b'{"shards": {}}', b'{"shards": {"t.json": %d}}' % size)
    server = Broken(broken, answer(nothing), broken, answer(nothing), answer(b'{"size": %d}' % size), answer(all_of_it))
    done = push(str(path), "--to", server.url, "--once")
    server.close()

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "it goes on" in done.stderr
    assert f"{size / 1e6:.1f} MB of t-abababab sent" in done.stdout
    assert server.asked == 6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>", "no collector"),
        (b"[]", "no collector"),
        (b"{}", "not understood"),
        (b'{"shards": {"t.json": "x"}}', "not understood"),
    ],
)
def test_what_is_no_collector_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    """And status 2."""
    (tmp_path / "t.json").write_text(shard("ab", 10))
    server = Broken(answer(content))
    done = push(str(tmp_path / "t.json"), "--to", server.url, "--once")
    server.close()

    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_collector_it_says_what_is_not_there(tmp_path: Path) -> None:
    """And ends with status 1; with nothing to send, too."""
    (tmp_path / "t.json").write_text(shard("ab" * 8, 200_000))
    url = f"http://127.0.0.1:{free_port()}"
    done = push(str(tmp_path / "t.json"), "--to", url, "--once")
    assert done.returncode == 1
    assert re.search(r"not sent: [23]\.\d MB of t\.json; push --once sends the rest", done.stderr)
    assert "Connection refused" in done.stderr

    done = push(str(tmp_path / "none.json"), "--to", url, "--once")
    assert done.returncode == 2
    assert "no such file" in done.stderr

    waits = pushing(str(tmp_path / "none.json"), "--to", url)
    line_of(waits, "nothing is there yet")
    waits.terminate()
    output, complaints = waits.communicate(timeout=30)
    assert waits.returncode == 1
    assert "None" not in output + complaints
    assert "no shard exists yet" in complaints


def test_a_second_run_of_the_same_name_is_kept_apart(tmp_path: Path) -> None:
    """Not a byte of one is in the other, and the user is told the second's name."""
    first, second = shard("aa" * 8, 5000), shard("bb" * 8, 9000)
    with collector(tmp_path / "kept") as url:
        for content in (first, second, second):
            (tmp_path / "t.json").write_text(content)
            done = push(str(tmp_path / "t.json"), "--to", url, "--run", "nightly", "--once")
            assert done.returncode == 0, done.stderr
        assert "nightly-bbbbbbbb" in done.stderr
        assert "0.0 MB of nightly-bbbbbbbb sent" in done.stdout
        assert set(ask(f"{url}/v1/runs")[1]["runs"]) == {"nightly", "nightly-bbbbbbbb"}
    assert (tmp_path / "kept" / "nightly" / "t.json").read_text() == first
    assert (tmp_path / "kept" / "nightly-bbbbbbbb" / "t.json").read_text() == second


def test_two_traces_without_an_id_are_kept_apart(tmp_path: Path) -> None:
    """Of the second, which is longer, not even the end is put behind the first."""
    first, second = ("".join(f'{{"{name}": {number}}},\n' for number in range(9000)) for name in "ab")
    second += "more" * 1000
    with collector(tmp_path / "kept") as url:
        for content in (first, second):
            (tmp_path / "t.json").write_text(content)
            done = push(str(tmp_path / "t.json"), "--to", url, "--run", "nightly", "--once")
            assert done.returncode == 0, done.stderr
        names = ask(f"{url}/v1/runs")[1]["runs"]
    kept = {(tmp_path / "kept" / name / "t.json").read_text() for name in names}
    assert kept == {first, second}


def test_another_run_in_the_same_file_is_another_one_there(tmp_path: Path) -> None:
    """The sender stays while one job after the other writes t.json."""
    path = tmp_path / "t.json"
    contents = [shard(f"{number}{number}" * 8, 3000 - 500 * number) for number in range(1, 4)]
    with collector(tmp_path / "kept") as url:
        sender = pushing(str(path), "--to", url)
        for number, content in enumerate(contents, start=1):
            path.write_text(content)
            name = f"t-{number}{number}{number}{number}" + f"{number}" * 4
            kept = tmp_path / "kept" / name / "t.json"
            wait_for(partial(is_kept, kept, content), name)
        sender.terminate()
        _, complaints = sender.communicate(timeout=30)
    assert sender.returncode == 0, complaints
    assert complaints.count("another run begins") == 2


def test_a_shard_that_goes_away_is_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there when the end was asked for, and is not any more: the sender ends, and not well."""
    from tlkit.collector.service import push as push_module

    monkeypatch.setattr(push_module, "POLL_S", 0.0)
    paths = [tmp_path / "t.json", tmp_path / "t.rank1.json"]
    for path in paths:
        path.write_text(shard("ab" * 8, 100))
    size = paths[1].stat().st_size
    with collector(tmp_path / "kept") as url:
        sender = push_module.Pusher([str(paths[0])], url, None, "", lambda _: None)
        send_new = sender.send_new

        def send_less(*, is_last: bool) -> int:
            paths[1].unlink(missing_ok=True)
            return send_new(is_last=is_last)

        monkeypatch.setattr(sender, "send_new", send_less)
        assert not sender.run_until(lambda: True)
        assert sender.missing() == {"t.rank1.json": size}
    assert (tmp_path / "kept" / "t-abababab" / "t.json").read_bytes() == paths[0].read_bytes()


def test_a_full_collector_makes_its_senders_wait(tmp_path: Path) -> None:
    """Said at once by the sender, in the collector's log, API and metrics; with more room it goes on by itself."""
    port, kept, path = free_port(), tmp_path / "kept", tmp_path / "t.json"
    path.write_text(shard("ab" * 8, 200_000))
    server, url = start(kept, port, "--keep-gb", "0.001")
    sender = pushing(str(path), "--to", url)
    assert "is full" in line_of(sender, "full")
    (run,) = ask(f"{url}/v1/runs")[1]["store"]["waiting"]
    assert "is full" in ask(f"{url}/v1/runs/{run}")[1]["waiting"]
    assert b"tlkit_store_waiting_runs 1" in ask(f"{url}/metrics")[1]
    (tmp_path / "mirror").mkdir()
    assert "is full" in Mirror(url, run, "", tmp_path / "mirror").fetch()
    assert sender.poll() is None
    server.terminate()
    _, complaints = server.communicate(timeout=20)
    assert "is full" in complaints

    server, url = start(kept, port, "--keep-gb", "0.1")
    line_of(sender, "goes on")
    sender.terminate()
    _, complaints = sender.communicate(timeout=30)
    assert sender.returncode == 0, complaints
    server.terminate()
    server.communicate(timeout=20)
    assert (kept / run / "t.json").read_bytes() == path.read_bytes()


def test_what_is_shown_is_of_one_run(tmp_path: Path) -> None:
    """Another run takes the name of the one that is mirrored: nothing of the old one stays."""
    (tmp_path / "mirror").mkdir()
    with collector(tmp_path / "kept") as url:
        mirror = Mirror(url, "r", "", tmp_path / "mirror")
        for run_id, lines in (("aa", 500), ("bb", 300)):
            content = shard(run_id, lines).encode()
            assert ask(f"{url}/v1/runs/r/shards/t.json?offset=0", content)[0] == 200
            assert mirror.fetch() == ""
            assert (tmp_path / "mirror" / "t.json").read_bytes() == content
            for path in (tmp_path / "kept" / "r").iterdir():
                path.unlink()
            (tmp_path / "kept" / "r").rmdir()


def test_a_sender_that_only_waits_keeps_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it is there, and hears it when its run is gone."""
    from tlkit.collector.service import push as push_module

    monkeypatch.setattr(push_module, "ALIVE_S", 0.0)
    path = tmp_path / "t.json"
    said: list[str] = []
    path.write_text(shard("ab" * 8, 100))
    with collector(tmp_path / "kept") as url:
        sender = push_module.Pusher([str(path)], url, None, "", said.append)
        assert sender.send_new() == path.stat().st_size
        assert sender.send_new() == 0
        assert said == []
        folder = tmp_path / "kept" / "t-abababab"
        for child in folder.iterdir():
            child.unlink()
        folder.rmdir()
        sender.send_new()
        assert "any more" in said[0]
        assert sender.send_new() == path.stat().st_size
    assert (folder / "t.json").read_bytes() == path.read_bytes()


def test_a_wrong_token_is_one_line_and_the_right_one_needs_no_command_line(tmp_path: Path) -> None:
    """By file or by environment; nobody is told it."""
    (tmp_path / "t.json").write_text(shard("ab" * 8, 20_000))
    (tmp_path / "token").write_text("sesame\n")
    (tmp_path / "empty").write_text("")
    with collector(tmp_path / "kept", 0, "--token-file", str(tmp_path / "token")) as url:
        what = [str(tmp_path / "t.json"), "--to", url, "--once"]
        wrongs: tuple[dict[str, Any], ...] = ({}, {"TLKIT_TOKEN": "open"})
        for wrong in wrongs:
            done = push(*what, **wrong)
            assert done.returncode == 2
            assert "a token is needed" in done.stderr
            assert len(done.stderr.splitlines()) == 1
        assert push(*what, "--token-file", str(tmp_path / "empty")).returncode == 2
        assert push(*what, "--token-file", str(tmp_path / "token")).returncode == 0
        assert push(*what, TLKIT_TOKEN="sesame").returncode == 0
        for header in ("sesame", "Basic sesame", "bearer  wrong", "Token sesame"):
            assert ask(f"{url}/v1/runs", Authorization=header)[0] == 401
        assert ask(f"{url}/v1/runs?token=sesame")[0] == 401
        assert ask(f"{url}/v1/runs", Cookie="tlkit_token=sesame")[0] == 401
        assert ask(f"{url}/v1/runs", Authorization="Bearer sesame")[0] == 200


def test_a_redirect_does_not_get_the_token(tmp_path: Path) -> None:
    """Whoever answers for the collector cannot have it sent elsewhere."""
    (tmp_path / "t.json").write_text(shard("ab", 10))
    thief = Broken(answer(b'{"shards": {}}'))
    server = Broken(b"HTTP/1.1 302 Found\r\nLocation: %s/\r\nContent-Length: 0\r\n\r\n" % thief.url.encode())
    done = push(str(tmp_path / "t.json"), "--to", server.url, "--once", TLKIT_TOKEN="sesame")
    server.close()
    thief.close()
    assert done.returncode == 2
    assert thief.asked == 0


def test_https_is_served_and_checked(tmp_path: Path) -> None:
    """With a certificate of its own; a sender that does not trust it says so and sends nothing."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    try:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is needed to make a certificate")
    certificate = str(tmp_path / "cert.pem")
    (tmp_path / "t.json").write_text(shard("ab" * 8, 100))
    keys = ("--certfile", certificate, "--keyfile", str(tmp_path / "key.pem"))
    with collector(tmp_path / "kept", 0, *keys) as url:
        assert url.startswith("https://")
        port = int(url.rpartition(":")[2])
        silent = socket.create_connection(("127.0.0.1", port), timeout=60)
        what = [str(tmp_path / "t.json"), "--to", url, "--once"]
        done = push(*what)
        assert done.returncode == 2
        assert "is not trusted" in done.stderr
        done = push(*what, SSL_CERT_FILE=certificate)
        assert done.returncode == 0, done.stderr
        assert silent.recv(1) == b""  # whoever opens a connection and says nothing is sent away
        silent.close()
    kept = tmp_path / "kept" / "t-abababab" / "t.json"
    assert kept.read_bytes() == (tmp_path / "t.json").read_bytes()


@pytest.mark.parametrize(
    "arguments", [["--certfile", "none.pem"], ["--keyfile", "key.pem"], ["--certfile", __file__], ["--token", "a b"]]
)
def test_a_certificate_or_token_that_is_none_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    """And status 2."""
    done = subprocess.run([*COLLECT, "serve", str(tmp_path / "kept"), "--port", "0", *arguments],
                          capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY)  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_where_nothing_can_be_said_it_goes_on(tmp_path: Path) -> None:
    """The disk that its output goes to is full."""
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is needed")
    path = tmp_path / "t.json"
    path.write_text(shard("ab" * 8, 1000))
    port = free_port()
    with Path("/dev/full").open("w") as full:
        sender = subprocess.Popen([*COLLECT, "push", str(path), "--to", f"http://127.0.0.1:{port}"],
                                  stdout=full, stderr=full, cwd=REPOSITORY)  # fmt: skip
        time.sleep(3)
        kept = tmp_path / "kept" / "t-abababab" / "t.json"
        with collector(tmp_path / "kept", port):
            wait_for(lambda: kept.exists() and kept.read_bytes() == path.read_bytes(), "it never arrived")
            sender.send_signal(signal.SIGTERM)
            sender.wait(timeout=30)


def test_the_sender_needs_no_server(tmp_path: Path) -> None:
    """A node that trains has neither Flask nor uvicorn."""
    code = "import sys; sys.modules['flask'] = sys.modules['uvicorn'] = None; import tlkit.collector.service.cli as c; sys.exit(c.main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "push", str(tmp_path / "t.json"), "--to", "http://127.0.0.1:9", "--once"],
                          capture_output=True, text=True, check=False, cwd=REPOSITORY)  # fmt: skip
    assert done.returncode == 2
    assert "no such file" in done.stderr
