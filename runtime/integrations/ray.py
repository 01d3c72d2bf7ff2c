"""Ray: `TorchTrainer(record(train_loop, "t.json"), ...)`, and `RayExecutor`, which starts our runtime on Ray's workers."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Self

import ray

from ..runtime.launch.placement import LOOPBACK, environments, free_ports, place
from ..timeline.errors import UsageError
from .lasting import LastingRecording


def record(train_loop: Callable[..., Any], timeline: str | os.PathLike[str] | None = None) -> Callable[..., Any]:
    """`train_loop_per_worker` for Ray Train's TorchTrainer, recorded on every worker.

    A callback or a backend of Ray Train runs on another thread than the training, or in another process; this runs where the
    training does, after the trainer has connected the workers.

    Args:
        train_loop: takes a configuration, or nothing.
        timeline: see `tlkit.instrument`.  A relative path counts from here, since workers run in folders of their own;
            workers on several hosts need it in a folder that they share.
    """
    path = Path(timeline).absolute() if timeline is not None else None

    @wraps(train_loop)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        recording = LastingRecording(path)
        recording.begin()
        try:
            return train_loop(*args, **kwargs)
        finally:
            recording.end()

    return recorded


class _Rank:
    """A worker of Ray that is a rank of our runtime."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)

    def address(self) -> str:
        """Of this worker's host."""
        return str(ray.util.get_node_ip_address())

    def ports(self) -> tuple[int, int]:
        """Two that are free on this host."""
        return free_ports(here=True)

    def become(self, environment: Mapping[str, str], folder: str) -> None:
        """Be a rank, in the driver's folder where this host has it."""
        os.environ.update(environment)
        if Path(folder).is_dir():
            os.chdir(folder)

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function as a rank."""
        return function(*args, **kwargs)

    def end(self) -> None:
        """Finish the timeline: Ray ends its workers without a word."""
        from ..runtime.core import engine  # noqa: PLC0415  reads the settings of this rank

        running = engine.current()
        if running is not None:
            running.shutdown()


class RayExecutor:
    """`horovod.ray.RayExecutor` with a fixed number of workers, on our runtime.

    >>> with RayExecutor(num_workers=2, env={"HOROVOD_TIMELINE": "t.json"}) as executor:  # doctest: +SKIP
    ...     losses = executor.run(train, args=[10])
    """

    def __init__(
        self,
        num_workers: int,
        *,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; `start`, or `with`, asks Ray for the workers.

        Args:
            num_workers: as many ranks.
            env: for the ranks; HOROVOD_ and TLKIT_ variables of this process reach them as well.

        Raises:
            UsageError: there would be no worker.
        """
        if num_workers < 1:
            raise UsageError(f"num_workers={num_workers}: at least one is needed")
        self._size = num_workers
        self._resources = {"num_cpus": cpus_per_worker, "num_gpus": gpus_per_worker}
        own = {name: value for name, value in os.environ.items() if name.startswith(("HOROVOD_", "TLKIT_"))}
        self._environment = {"PYTHONUNBUFFERED": "1", **own, **(env or {})}
        self._ranks: list[Any] = []

    def start(self) -> None:
        """Start the workers and make them ranks, those of one host side by side."""
        worker = ray.remote(**self._resources)(_Rank)
        found = [worker.remote(self._environment) for _ in range(self._size)]
        addresses = ray.get([each.address.remote() for each in found])
        hosts = list(dict.fromkeys(addresses))
        ordered = sorted(zip(addresses, found, strict=True), key=lambda each: hosts.index(each[0]))
        self._ranks = [each for _, each in ordered]
        slots = place([(host, addresses.count(host)) for host in hosts], self._size)
        port, meeting_port = ray.get(self._ranks[0].ports.remote())
        master = LOOPBACK if len(hosts) == 1 else hosts[0]
        made = environments(slots, {}, self._environment, master, port, meeting_port=meeting_port)
        folder = str(Path.cwd())
        ray.get([each.become.remote(environment, folder) for each, environment in zip(self._ranks, made, strict=True)])

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn` on all ranks; returns Ray's references to the results, in rank order."""
        if not self._ranks:
            raise UsageError("the workers are not running: call start() first")
        return [each.call.remote(fn, args or (), kwargs or {}) for each in self._ranks]

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn` on all ranks; returns what it returns on each, in rank order."""
        return list(ray.get(self.run_remote(fn, args, kwargs)))

    def execute_single(self, fn: Callable[[], Any]) -> Any:
        """Call `fn` on rank 0 alone."""
        if not self._ranks:
            raise UsageError("the workers are not running: call start() first")
        return ray.get(self._ranks[0].call.remote(fn, (), {}))

    def shutdown(self) -> None:
        """Finish the timelines and give the workers back to Ray."""
        ranks, self._ranks = self._ranks, []
        try:
            ray.get([each.end.remote() for each in ranks])
        finally:
            for each in ranks:
                ray.kill(each)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Shut down."""
        self.shutdown()
