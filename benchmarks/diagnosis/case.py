"""A case of the benchmark: a training with a fault, and what has to be said of it."""

import re
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

from recorded import Job


@dataclass(frozen=True)
class Case:
    """A fault, and what has to be found."""

    name: str
    fault: str
    class_: str
    causes: tuple[str, ...] = ()
    """Any of them is right; empty for any."""
    ranks: tuple[int, ...] = ()
    """The ranks that have to be named; empty for any."""
    arguments: tuple[str, ...] = ()
    """For both runs."""
    faulty_only: tuple[str, ...] = ()
    clean_only: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """For the faulty run only."""
    transport: str = ""
    """HOROVOD_CPU_OPERATIONS of both runs; empty for the default."""
    limit: str | None = None
    """Two hosts; the arguments of `tc qdisc add` for the faulty run."""
    ddp: str = ""
    """DistributedDataParallel, and what records it: `profiler` or `instrument`."""
    size: int = 2
    also: tuple[str, ...] = ()
    """Classes that are right, too, with any cause."""
    also_causes: tuple[str, ...] = ()
    """Causes that are right, too, whatever their class."""
    has_load: bool = False
    """Whether other programs keep the cores busy, in both runs."""
    script: str = "train.py"
    may_lack_cores: bool = False
    """Whether it is right, too, that the machine is loaded; what is wrong has to be found beside it."""
    framework: str = ""
    """The package that the script trains with, where it is not PyTorch alone."""

    @property
    def slug(self) -> str:
        """The name as a folder's."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def can_train(self) -> bool:
        """Whether this interpreter has what the script trains with."""
        return not self.framework or find_spec(self.framework) is not None

    def job(self, steps: int, *, is_faulty: bool) -> Job:
        """The run with the fault, or the one without."""
        fault = ("--fault", self.fault if is_faulty else "none") if self.script == "train.py" else ()
        only = self.faulty_only if is_faulty else self.clean_only
        return Job(
            ranks=self.size,
            recorder=self.ddp or "hvd",
            script=self.script,
            arguments=("--steps", str(steps), *fault, *self.arguments, *only),
            environment={
                **({"HOROVOD_CPU_OPERATIONS": self.transport} if self.transport else {}),
                **(self.environment if is_faulty else {}),
            },
            limit=self.limit if is_faulty or self.limit is None else "",
            has_load=self.has_load,
        )

    def accepts(self, report: dict[str, Any]) -> bool:
        """Whether a report's verdict is right."""
        verdict = report["verdict"]
        if verdict["class"] in self.also or verdict["cause"] in self.also_causes:
            return True
        if self.may_lack_cores and verdict["cause"] in {"starved-of-cores", "slower-cores"}:
            return self.class_ == "healthy" or any(self._fits(finding) for finding in report["findings"])
        return self._fits(verdict)

    def _fits(self, finding: dict[str, Any]) -> bool:
        """Whether it has the class and the ranks, and one of the causes."""
        return (
            finding["class"] == self.class_
            and (not self.ranks or tuple(finding["ranks"]) == self.ranks)
            and (not self.causes or finding["cause"] in self.causes)
        )

    def as_json(self) -> dict[str, Any]:
        """What is kept beside the recorded runs."""
        return asdict(self)


def read_case(record: dict[str, Any]) -> Case:
    """A case from what `as_json` kept."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    return Case(**values)
