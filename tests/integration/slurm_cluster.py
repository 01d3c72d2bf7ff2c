"""A Slurm cluster of two nodes on this machine: Debian's daemons, each node with a network and a host name of its own."""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

NODES = ("tlnode1", "tlnode2")
_ADDRESSES = ("10.213.78.1", "10.213.78.2")
_DAEMONS = ("munged", "slurmctld", "slurmd")

_CONFIGURATION = """
ClusterName=tlkit
SlurmctldHost={nodes[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName={nodes[0]},{nodes[1]} CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=5
"""


class SlurmUnavailable(Exception):
    """There is no Slurm, or it may not be started here; says why."""


class SlurmCluster:
    """Runs Slurm's commands on the first node."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "TLKIT_", "SLURM_"))
        }
        self.environment["SLURM_CONF"] = str(folder / "slurm.conf")
        self._on_node = _on_node(folder, 0)

    def run(self, command: Sequence[str], timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
        """Run a command on the first node."""
        return subprocess.run(
            [*self._on_node, *command],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def _on_node(folder: Path, number: int) -> list[str]:
    """Runs what follows with the network, the host name and the /etc/hosts of a node.

    Not `ip netns exec`, which puts another /sys in place: slurmd looks for control groups there.
    """
    script = 'mount --bind "$1" /etc/hosts && hostname "$0" && shift && exec "$@"'
    node = NODES[number]
    return [
        *("nsenter", f"--net=/run/netns/{node}", "unshare", "--mount", "--uts"),
        *("sh", "-c", script, node, str(folder / "hosts")),
    ]


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A running cluster, whose files are in `folder`.

    Raises:
        SlurmUnavailable: it cannot be started here.
    """
    missing = [name for name in _DAEMONS if shutil.which(name) is None]
    if missing or os.getuid():
        raise SlurmUnavailable(f"no Slurm that this user can start (missing: {', '.join(missing) or 'root'})")
    with ExitStack() as stack:
        try:
            _make_networks(stack)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SlurmUnavailable(f"network namespaces cannot be made here: {error}") from error
        (folder / "state").mkdir()
        lines = ("127.0.0.1 localhost", *map("{} {}".format, _ADDRESSES, NODES))
        (folder / "hosts").write_text("".join(f"{line}\n" for line in lines))
        (folder / "slurm.conf").write_text(_CONFIGURATION.format(nodes=NODES, folder=folder))
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munge.pid"}
        files |= {"log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}
        _start(stack, ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())])
        _wait_for(files["socket"].exists, "munged", folder)
        cluster = SlurmCluster(folder)
        start = ["-D", "-f", str(folder / "slurm.conf")]
        _start(stack, [*_on_node(folder, 0), "slurmctld", *start])
        for number, node in enumerate(NODES):
            _start(stack, [*_on_node(folder, number), "slurmd", "-N", node, *start])
        _wait_for(lambda: cluster.run(["sinfo", "-h", "-o", "%T %D"]).stdout == "idle 2\n", "the nodes", folder)
        yield cluster


def _make_networks(stack: ExitStack) -> None:
    for node in NODES:
        stack.callback(subprocess.run, ["ip", "netns", "del", node], capture_output=True, check=False)
        _ip("netns", "add", node)
        _ip("-n", node, "link", "set", "lo", "up")
    _ip("link", "add", "tlslurm1", "netns", NODES[0], "type", "veth", "peer", "name", "tlslurm2", "netns", NODES[1])
    for number, (node, address) in enumerate(zip(NODES, _ADDRESSES, strict=True), start=1):
        _ip("-n", node, "addr", "add", f"{address}/24", "dev", f"tlslurm{number}")
        _ip("-n", node, "link", "set", f"tlslurm{number}", "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _start(stack: ExitStack, command: Sequence[str]) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def end() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _wait_for(is_there: object, what: str, folder: Path) -> None:
    assert callable(is_there)
    deadline = time.monotonic() + 30
    while not is_there():
        if time.monotonic() > deadline:
            logs = "".join(f"\n{path.name}:\n{path.read_text()[-2000:]}" for path in folder.glob("*.log"))
            raise AssertionError(f"{what} did not come{logs}")
        time.sleep(0.1)
