"""Host lists of tl-run."""

import socket
from pathlib import Path

import pytest

from tlkit.runtime.launch.hosts import interface_address, is_local, parse_hosts, read_hostfile
from tlkit.runtime.launch.placement import place
from tlkit.timeline.errors import UsageError


def test_hosts_have_slots() -> None:
    """`name:N` gives N, a bare name one."""
    assert parse_hosts("localhost:4, worker-1,node.example:12") == [
        ("localhost", 4),
        ("worker-1", 1),
        ("node.example", 12),
    ]


@pytest.mark.parametrize("text", ["", "a:b", "a:2,,b:2", "a b:2", "::1:2", "a:-1"])
def test_other_forms_of_hosts_are_refused_with_the_right_one(text: str) -> None:
    """The message shows how it should look."""
    with pytest.raises(UsageError, match="worker-0:2,worker-1:2"):
        parse_hosts(text)


def test_a_host_file_may_have_comments(tmp_path: Path) -> None:
    """Blank lines and comments are no hosts."""
    path = tmp_path / "hosts"
    path.write_text("# ours\nlocalhost slots=2\n\n  127.0.0.1 slots = 3 # two more\nbare\n")

    assert read_hostfile(str(path)) == [("localhost", 2), ("127.0.0.1", 3), ("bare", 1)]


def test_a_broken_host_file_is_named_with_its_line(tmp_path: Path) -> None:
    """Where to look is part of the message."""
    path = tmp_path / "hosts"
    path.write_text("localhost slots=2\nother slots\n")

    with pytest.raises(UsageError, match=r"hosts line 2: 'other slots'"):
        read_hostfile(str(path))
    with pytest.raises(UsageError, match="cannot read the host file"):
        read_hostfile(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.4.5.6", True),
        (socket.gethostname(), True),
        ("192.0.2.1", False),
        ("127.example.invalid", False),
    ],
)
def test_this_machine_is_known_by_its_names(host: str, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback addresses and the own name are local; a name that only looks like an address is not."""
    monkeypatch.setattr(socket, "getfqdn", lambda: "own.example")

    assert is_local(host) is local


def test_an_interface_has_an_address() -> None:
    """A name that there is not is answered with those that there are."""
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(UsageError, match=r"this machine has .*lo"):
        interface_address("nothing0")


def test_ranks_fill_the_hosts_in_their_order() -> None:
    """Exactly as many as asked for, with local and cross ranks as Horovod counts them."""
    placed = place([("a", 2), ("b", 3), ("a", 1), ("c", 4)], 6)

    assert [(slot.host, slot.local_rank, slot.local_size, slot.cross_rank, slot.cross_size) for slot in placed] == [
        ("a", 0, 3, 0, 2),
        ("a", 1, 3, 0, 2),
        ("a", 2, 3, 0, 2),
        ("b", 0, 3, 1, 2),
        ("b", 1, 3, 1, 2),
        ("b", 2, 3, 1, 2),
    ]
    with pytest.raises(UsageError, match=r"more processes \(3\) than there are available slots \(2\)"):
        place([("localhost", 2)], 3)
