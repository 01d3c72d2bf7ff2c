"""The Dockerfile, as far as that can be said without a container engine."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
LINES = (REPOSITORY / "packaging" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def test_what_is_copied_is_there_and_not_ignored() -> None:
    """From the repository; what comes from the other stage is made there."""
    ignored = set((REPOSITORY / ".dockerignore").read_text().split())
    copied = [line.split()[1] for line in LINES if line.startswith("COPY ") and "--from" not in line]

    assert copied == [".", "constraints.txt", "samples"]
    assert all((REPOSITORY / source).exists() and source not in ignored for source in copied)


def test_torch_is_the_one_that_is_tested() -> None:
    """The version in constraints.txt."""
    asked = re.findall(r"torch==\S+", "\n".join(LINES))

    assert asked == [
        line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    ]


def test_manifests_find_their_scripts_and_their_ssh_server() -> None:
    """Samples and the configuration of sshd lie where samples/cluster/kubernetes expects them."""
    manifests = "".join(path.read_text() for path in (REPOSITORY / "samples" / "cluster" / "kubernetes").glob("*.yaml"))
    whole = "\n".join(LINES)

    assert "COPY samples /opt/tlkit/samples" in whole
    for name in re.findall(r"/opt/tlkit/samples/(\w+\.py)", manifests):
        assert (REPOSITORY / "samples" / name).is_file()
    for path in re.findall(r"/home/tlkit/[.\w]+", manifests):
        assert path in whole
