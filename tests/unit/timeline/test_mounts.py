"""Whether a folder lies on this machine alone, as the kernel's list of mounts says."""

from pathlib import Path

import pytest

from tlkit.timeline.read.mounts import is_local

LINES = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw
30 27 0:40 / {base}/home rw,relatime shared:9 master:1 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / {base}/home/fast rw - xfs /dev/vdb rw
32 27 0:42 / {base}/with\\040space rw - fuse.sshfs me@there: rw
33 27 0:43 / {base}/twice rw - ext4 /dev/vdc rw
34 33 0:44 / {base}/twice rw - nfs server:/x rw
a line that says nothing
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(LINES.format(base=tmp_path))
    return path


@pytest.mark.parametrize(
    ("folder", "local"),
    [
        ("", True),
        ("homes", True),
        ("home", False),
        ("home/me/.cache", False),
        ("home/fast/cache", True),
        ("with space/cache", False),
        ("twice", False),
    ],
)
def test_the_innermost_mount_decides(tmp_path: Path, mounts: Path, folder: str, *, local: bool) -> None:
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)

    assert is_local(place, mounts) is local


def test_what_a_link_leads_to_counts(tmp_path: Path, mounts: Path) -> None:
    (tmp_path / "home" / "cache").mkdir(parents=True)
    (tmp_path / "cache").symlink_to(tmp_path / "home" / "cache")

    assert not is_local(tmp_path / "cache", mounts)


def test_without_the_list_it_is_not_known(tmp_path: Path) -> None:
    """As on systems without /proc."""
    assert not is_local(tmp_path, tmp_path / "nothing")
    assert not is_local(tmp_path / "nothing")
