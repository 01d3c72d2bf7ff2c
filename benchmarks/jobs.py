"""Runs several jobs side by side and lets them work in turn, so that whatever else the machine does falls on all of them.

A job is a command started on every rank by tl-run or mpirun.  Its ranks connect to this process and do a piece of work
whenever they are told to; the other jobs sleep meanwhile.
"""

import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

REPOSITORY = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


class Job:
    """One job, and the connections to its ranks."""

    def __init__(
        self, name: str, command: Sequence[str], ranks: int, *, mpi: bool, environment: Mapping[str, str]
    ) -> None:
        """Start it and wait until all ranks have connected.

        Args:
            mpi: whether mpirun starts the ranks.
        """
        self.name = name
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(1)
        settings = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
            "BENCHMARK_PORT": str(listener.getsockname()[1]),
            **environment,
        }
        launcher = [str(BIN / "tl-run"), "-np", str(ranks)]
        if mpi:
            settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            mpirun = shutil.which("mpirun", path=f"{BIN}:{os.environ['PATH']}")
            launcher = [str(mpirun), "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        self._process = subprocess.Popen([*launcher, sys.executable, *command], env=settings)
        self._files: list[TextIO] = []
        with listener:
            # Frameworks take long to import where others work, too: whether the job is still there is what counts.
            while len(self._files) < ranks:
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    self._files.append(connection.makefile("rw"))
                if self._process.poll() is not None:
                    sys.exit(f"{name}: ended with status {self._process.returncode} before its ranks could work")

    def work(self, what: Any) -> list[Any]:
        """Have all ranks do `what` at the same time; returns what each of them says of it."""
        for file in self._files:
            file.write(json.dumps(what) + "\n")
            file.flush()
        return [json.loads(file.readline()) for file in self._files]

    def end(self) -> None:
        """End the job."""
        for file in self._files:
            file.write("null\n")
            file.flush()
        self._process.wait(60)


def serve(work: Callable[[Any], Any]) -> None:
    """On a rank: do what the benchmark asks for until it has enough."""
    connection = socket.create_connection(("127.0.0.1", int(os.environ["BENCHMARK_PORT"])))
    file = connection.makefile("rw")
    while (what := json.loads(file.readline())) is not None:
        file.write(json.dumps(work(what)) + "\n")
        file.flush()


def has_horovod() -> bool:
    """Whether the real Horovod is installed."""
    code = "import horovod.torch as h, sys; sys.exit('tlkit' in h.__name__ or 'tlkit' in (h.init.__module__))"
    environment = {**os.environ, "TLKIT_HOROVOD_ALIAS": "0"}
    return (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False).returncode == 0
    )


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and quartiles."""
    low, _, high = statistics.quantiles(values, n=4)
    return statistics.median(values), low, high
