"""Connections that are opened and never used up: everybody else is answered all the same, and the strangers lose theirs."""

import contextlib
import json
import random
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.ranks import REPOSITORY

from .harness import DASH, LIMIT_S, TOKEN, Server, amount, collecting, report, wait_for

#: More than a server keeps at once.
MAX_HELD = 500


@contextlib.contextmanager
def dashboard(folder: Path) -> Iterator[Server]:
    """A dashboard that wants a token."""
    path = folder / "t.json"
    path.write_text('[{"name": "a", "ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 9}]')
    server = Server([*DASH, str(path), "--port", "0"], folder / "dash.log", {"TLKIT_DASH_TOKEN": TOKEN})
    try:
        yield server
    finally:
        server.stop()
    assert "Traceback" not in server.complaints, server.complaints


def collector(folder: Path) -> contextlib.AbstractContextManager[Server]:
    return collecting(folder / "kept")


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    connection.setblocking(False)
    try:
        return not connection.recv(65536)
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("serving", [collector, dashboard])
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        b"POST /v1/runs/a/alive HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nx",
    ],
)
def test_half_open(
    serving: Callable[[Path], contextlib.AbstractContextManager[Server]], begun: bytes, tmp_path: Path
) -> None:
    """Without a token: nothing, half a header that drips, half a body."""
    count = amount(150, 3000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * count + 200)), hard))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path))
        path = "/healthz" if serving is collector else "/verdict"
        assert server.ask(path)[0] == 200
        held = []
        slowest_s = 0.0
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            stack.callback(connection.close)
            if begun:
                connection.sendall(begun)
            held.append(connection)
            if number % 50 == 49:
                began = time.monotonic()
                assert server.ask(path)[0] == 200
                slowest_s = max(slowest_s, time.monotonic() - began)
        assert server.descriptors < MAX_HELD + 100
        left = list(held)

        def drip() -> bool:
            nonlocal left
            for connection in left:
                with contextlib.suppress(OSError):
                    connection.setblocking(True)
                    connection.settimeout(1)
                    connection.sendall(b"a" if begun else b"")
            left = [connection for connection in left if not is_closed(connection)]
            time.sleep(0.5)
            return not left

        wait_for(drip, "they are held still")
        assert server.ask(path)[0] == 200
    report(
        f"{count} connections with {begun[:16]!r} at {serving.__name__}: others wait {1000 * slowest_s:.0f} ms at most"
    )


@pytest.mark.timeout(LIMIT_S)
def test_handshakes_have_a_limit(tmp_path: Path) -> None:
    """Connections on which TLS is never set up: others are answered, and no more of them are held than of any."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
               "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    try:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is needed to make a certificate")
    count = amount(700, 3000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * count + 200)), hard))
    keys = ("--certfile", str(tmp_path / "cert.pem"), "--keyfile", str(tmp_path / "key.pem"))
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    trusting.check_hostname = False
    slowest_s = 0.0
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(collecting(tmp_path / "kept", *keys))
        address = ("127.0.0.1", server.port)
        held = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(count)]
        most = 0
        for _ in range(5):
            began = time.monotonic()
            with trusting.wrap_socket(socket.create_connection(address, timeout=30)) as asking:
                asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sesame\r\n\r\n")
                assert asking.recv(12) == b"HTTP/1.1 200"
            slowest_s = max(slowest_s, time.monotonic() - began)
            most = max(most, server.descriptors)
        assert most < MAX_HELD + 100
        assert sum(map(is_closed, held)) >= count - MAX_HELD - 1
        wait_for(lambda: all(map(is_closed, held)), "they are held still")
    report(f"{count} connections without a handshake: {most} files open, others wait {1000 * slowest_s:.0f} ms at most")


@pytest.mark.timeout(LIMIT_S)
def test_a_large_body_without_a_token_is_not_taken(tmp_path: Path) -> None:
    """It is refused at the header; nothing of it is kept in memory or in a file."""
    with collecting(tmp_path / "kept") as server:
        before_mb = server.rss_mb
        sent = 0
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            head = b"PUT /v1/runs/a/shards/t.json?offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 400000000\r\n\r\n"
            connection.sendall(head)
            with contextlib.suppress(OSError):
                while sent < 399_000_000:
                    sent += connection.send(bytes(1 << 20))
        assert sent < 40_000_000
        assert server.rss_mb < before_mb + 50
        files = [str(path.readlink()) for path in Path(f"/proc/{server.process.pid}/fd").iterdir()]
        assert not [name for name in files if "deleted" in name]
    report(f"a body of 400 MB without a token: {sent / 1e6:.1f} MB left its sender, 0 were kept")


@pytest.mark.timeout(LIMIT_S)
def test_expecting_senders_are_refused_before_they_send(tmp_path: Path) -> None:
    """`Expect: 100-continue`: with the token the body is asked for, without it never."""
    with collecting(tmp_path / "kept") as server:
        for token, expected in ((TOKEN, b"HTTP/1.1 100"), ("wrong", b"HTTP/1.1 401")):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(
                    b"PUT /v1/runs/a/shards/t.json?offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"
                    b"Expect: 100-continue\r\nAuthorization: Bearer " + token.encode() + b"\r\n\r\n"
                )
                assert connection.recv(12) == expected


@pytest.mark.timeout(LIMIT_S)
def test_a_slow_body_behind_another_request_is_waited_for(tmp_path: Path) -> None:
    """It came with the request before it, and is no rest of that one's."""
    with collecting(tmp_path / "kept") as server:
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address, timeout=30) as connection, connection.makefile("rb") as answers:
            common = b"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sesame\r\n"
            put = b"PUT /v1/runs/a/shards/t.json?offset=0 " + common + b"Content-Length: 5\r\n\r\nab"
            connection.sendall(b"GET /healthz " + common + b"\r\n" + put)
            assert answers.readline().startswith(b"HTTP/1.1 200")
            time.sleep(3)
            connection.sendall(b"cde")
            assert any(line.startswith(b"HTTP/1.1 200") for line in iter(answers.readline, b""))
    assert (tmp_path / "kept" / "a" / "t.json").read_bytes() == b"abcde"


@pytest.mark.timeout(LIMIT_S)
def test_headers_have_a_limit(tmp_path: Path) -> None:
    """One line without an end, and many lines."""
    with collecting(tmp_path / "kept") as server:
        for block in (b"x" * 10_000, b"X-A: b\r\n" * 1000):
            sent = 0
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nY: ")
                with contextlib.suppress(OSError):
                    while sent < 50_000_000:
                        sent += connection.send(block)
            assert sent < 40_000_000
        assert server.ask("/healthz")[0] == 200


@pytest.mark.timeout(LIMIT_S)
def test_garbage(tmp_path: Path) -> None:
    """Requests with bytes changed, cut and doubled: an answer or none, never an accident."""
    whole = (
        b"PUT /v1/runs/a/shards/t.json?offset=0&before=aa HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sesame\r\n"
        b"Content-Length: 4\r\nCookie: a=b\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"
    )
    count, chance = amount(300, 20_000), random.Random(7)
    statuses: dict[bytes, int] = {}
    with collecting(tmp_path / "kept") as server:
        for _ in range(count):
            content = bytearray(whole)
            for _ in range(chance.choice([1, 2, 5, 30])):
                at = chance.randrange(len(content))
                change = chance.random()
                if change < 0.6:
                    content[at] = chance.choice([0, 10, 13, 32, 58, 127, 255, chance.randrange(256)])
                elif change < 0.8:
                    del content[at : at + chance.randrange(1, 20)]
                    content = content or bytearray(b"\0")
                else:
                    content[at:at] = content[at : at + chance.randrange(1, 50)]
            address = ("127.0.0.1", server.port)
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=30) as connection:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                status = connection.recv(12)[9:12]
                statuses[status] = statuses.get(status, 0) + 1
        assert server.ask("/healthz")[0] == 200
    assert not statuses.get(b"500"), server.complaints
    told = ", ".join(f"{status.decode('latin-1') or 'none'}: {number}" for status, number in sorted(statuses.items()))
    report(f"{count} damaged requests: {told}")


@pytest.mark.timeout(LIMIT_S)
def test_an_answer_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    """The thread that made it is free at once; the connection goes in time."""
    if amount(0, 1) == 0:
        pytest.skip("it takes half a minute: TLKIT_ATTACK=long")
    with collecting(tmp_path / "kept") as server:
        for offset in range(0, 32 << 20, 8 << 20):
            status, _ = server.ask(f"/v1/runs/a/shards/t.json?offset={offset}", "PUT", bytes(8 << 20))
            assert status == 200
        unread = []
        for _ in range(40):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            connection.sendall(
                b"GET /v1/runs/a/shards/t.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sesame\r\n\r\n"
            )
            unread.append(connection)
        assert server.ask("/healthz")[0] == 200
        wait_for(lambda: server.descriptors < 30, "they are held still")
        for connection in unread:
            connection.close()


@pytest.mark.timeout(LIMIT_S)
def test_pages_are_served_to_those_with_the_token(tmp_path: Path) -> None:
    """The address with the token leads to a cookie of this server and keeps the rest of the address; callbacks are answered."""
    with dashboard(tmp_path) as server:
        assert server.ask("/verdict", headers={"Authorization": ""})[0] == 401
        assert server.ask("/verdict", headers={"Authorization": TOKEN})[0] == 401
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        connection.sendall(
            b"GET //evil.example/timeline?from=1&to=2&token=sesame HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n"
            % server.port
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode().lower()
        connection.close()
        assert "location: /evil.example/timeline?from=1&to=2\r\n" in answer
        assert f"set-cookie: tlkit_token_{server.port}={TOKEN}; httponly" in answer
        cookie = {
            "Authorization": "",
            "Cookie": f"tlkit_token_{server.port}={TOKEN}",
            "Host": f"127.0.0.1:{server.port}",
        }
        assert server.ask("/verdict", headers=cookie)[0] == 200
        assert server.ask("/verdict", headers={**cookie, "Cookie": f"tlkit_token_1={TOKEN}"})[0] == 401
        # What the page asks for with each tick, as the page itself learns it.
        callbacks = json.loads(server.ask("/_dash-dependencies", headers=cookie)[1])
        (tick,) = [one for one in callbacks if one["output"].startswith("..version.data...")]
        outputs = [one.rsplit(".", 1) for one in tick["output"].strip(".").split("...")]
        asked = {
            "output": tick["output"],
            "outputs": [{"id": name, "property": what} for name, what in outputs],
            "inputs": [{**one, "value": 1} for one in tick["inputs"]],
            "changedPropIds": ["tick.n_intervals"],
            "state": [{**one, "value": None} for one in tick["state"]],
        }
        body = json.dumps(asked).encode()
        headers = {**cookie, "Content-Type": "application/json"}
        status, said = server.ask("/_dash-update-component", "POST", body, headers)
        assert (status, "version" in said["response"]) == (200, True)
        assert (
            server.ask("/_dash-update-component", "POST", body, {**headers, "Origin": "http://evil.example"})[0] == 403
        )
        assert server.ask("/_dash-update-component", "POST", bytes(2 << 20), headers)[0] == 413
        assert server.ask("/verdict", headers={**cookie, "Host": "evil.example"})[0] == 421


def test_both_servers_end_at_once(tmp_path: Path) -> None:
    """Whoever holds a connection does not hold the server."""
    with (
        collecting(tmp_path / "kept") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as held,
    ):
        held.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        assert server.ask("/healthz")[0] == 200


def test_the_port_is_free_again(tmp_path: Path) -> None:
    """A server that cannot listen says so in a line."""
    with collecting(tmp_path / "kept") as server:
        done = subprocess.run(
            [sys.executable, "-m", "tlkit.collector.service.cli", "serve", str(tmp_path / "more"), "--port", str(server.port)],
            capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY,
        )  # fmt: skip
        assert done.returncode == 2
        assert "cannot listen" in done.stderr
