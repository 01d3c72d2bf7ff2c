"""What is made wrong in a training: how faults are written, and what they do.

A fault is written `name:option=value,…`; several are joined with `+`, and the same name may come more than once:

    slow-forward:rank=1,ms=50                       rank 1 sleeps 50 ms in each forward pass
    slow-forward:rank=1/3,ms=50                     ranks 1 and 3 do
    slow-forward:rank=0,every=2,at=1+slow-forward:rank=1,every=2
    slow-forward:rank=1,ms=80,from=20,to=40         in the steps 20 to 40 only
    slow-host:rank=1,ms=0,grow=1                    1 ms longer in each step
"""

import threading
import time
from dataclasses import dataclass

ALWAYS = 10**9

FAULTS = {
    "slow-dataset": "reading samples takes longer (ms a batch)",
    "slow-transform": "a transform computes for ms a batch",
    "slow-collate": "collate_fn takes longer",
    "short-epochs": "workers start anew every five steps",
    "slow-forward": "sleep in forward",
    "busy-forward": "forward computes longer",
    "slow-backward": "sleep in backward",
    "busy-backward": "backward computes longer",
    "slow-optimizer": "sleep in the optimizer step",
    "busy-optimizer": "the optimizer step computes longer",
    "heavy-optimizer": "the optimizer step moves 256 MB through memory",
    "slow-host": "sleep in the loop",
    "busy-host": "compute in the loop",
    "item": "loss.item() in every step",
    "metrics": "blocking allreduces of numbers, `count` of them",
    "broadcast-object": "an object is broadcast, `count` times",
    "allgather-object": "objects are gathered, `count` times",
    "barrier": "barriers, `count` of them",
    "validation": "`count` batches without gradients",
    "checkpoint": "the model is written to slow storage, in ms",
    "garbage": "gc.collect() with two million objects to look through",
    "hog": "another process on the core of the rank",
    "gil": "a thread that computes in Python for ms of each 100 ms",
    "gil-call": "a thread that spends ms of each 100 ms in one call of C, which keeps the interpreter's lock",
    "big-batches": "three times as large batches",
    "uneven-batches": "batch sizes that differ from rank to rank and step to step",
    "huge-tensor": "a layer of 36 MB near the output",
    "two-huge": "two layers of 18 MB near the output",
    "late-layer": "a layer of 36 MB at the input, whose gradient comes last",
}
_EVERY = {"validation": 10, "checkpoint": 10, "garbage": 4}
"""Every how many steps, where it is not each."""
_PERIOD_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of one or more ranks."""

    name: str
    ranks: tuple[int, ...] = ()
    """Empty for all."""
    ms: float = 50.0
    grow: float = 0.0
    """How many ms more each step takes."""
    count: int = 1
    every: int = 1
    at: int = 0
    """The step of each `every` in which it happens."""
    first: int = 0
    last: int = ALWAYS

    def is_due(self, step: int) -> bool:
        return self.first <= step <= self.last and step % self.every == self.at % self.every


def read_fault(text: str) -> Fault:
    """A fault as it is written on the command line.

    Raises:
        SystemExit: there is no such fault or option, or a value is no number.
    """
    name, _, rest = text.partition(":")
    if name not in FAULTS:
        raise SystemExit(f"{name}: choose one of {', '.join(FAULTS)}")
    numbers: dict[str, float] = {}
    ranks: tuple[int, ...] = ()
    for option in filter(None, rest.split(",")):
        key, _, value = option.partition("=")
        try:
            if key == "rank":
                ranks = tuple(int(rank) for rank in value.split("/"))
            elif key in {"ms", "grow", "count", "every", "at", "from", "to"}:
                numbers[key] = float(value)
            else:
                raise SystemExit(f"{text}: options are rank, ms, grow, count, every, at, from and to")
        except ValueError:
            raise SystemExit(f"{text}: {value!r} is no number") from None
    return Fault(
        name=name,
        ranks=ranks,
        ms=numbers.get("ms", 50.0),
        grow=numbers.get("grow", 0.0),
        count=int(numbers.get("count", 1)),
        every=max(1, int(numbers.get("every", _EVERY.get(name, 1)))),
        at=int(numbers.get("at", 0)),
        first=int(numbers.get("from", 0)),
        last=int(numbers.get("to", ALWAYS)),
    )


def read_faults(text: str) -> list[Fault]:
    """All faults of a text; `none` is none."""
    return [read_fault(part) for part in text.split("+") if part not in {"", "none"}]


class Faults:
    """What is made wrong on this rank.  `step` is set by the loop and counts from 1."""

    def __init__(self, text: str, rank: int) -> None:
        everywhere = read_faults(text)
        self.names = {fault.name for fault in everywhere}
        """Of any rank: a layer is part of the model on all of them."""
        self.here = [fault for fault in everywhere if not fault.ranks or rank in fault.ranks]
        self.step = 0

    def has(self, name: str) -> bool:
        return any(fault.name == name for fault in self.here)

    def ms(self, name: str, step: int | None = None) -> float:
        """How long it takes in this step."""
        now = self.step if step is None else step
        return sum(fault.ms + fault.grow * now for fault in self.here if fault.name == name and fault.is_due(now))

    def count(self, name: str) -> int:
        """How often it happens in this step."""
        return sum(fault.count for fault in self.here if fault.name == name and fault.is_due(self.step))

    def sleep(self, name: str, share: float = 1.0, step: int | None = None) -> None:
        """Be slow without computing."""
        ms = self.ms(name, step)
        if ms > 0:
            time.sleep(share * ms / 1e3)

    def spin(self, name: str, share: float = 1.0, step: int | None = None) -> None:
        """Compute.  Measured in CPU time, so that a busy machine does not shorten the work."""
        ms = self.ms(name, step)
        end_s = time.thread_time() + share * ms / 1e3
        while ms > 0 and time.thread_time() < end_s:
            pass


def start_threads(faults: Faults) -> None:
    """Threads that take the interpreter's lock, in each 0.1 s, until the process ends."""
    if faults.has("gil"):
        threading.Thread(target=_compute, args=(faults.ms("gil"),), daemon=True).start()
    if faults.has("gil-call"):
        threading.Thread(target=_compute_in_calls, args=(faults.ms("gil-call"),), daemon=True).start()


def _compute(ms: float) -> None:
    while True:
        end_s = time.monotonic() + ms / 1e3
        while time.monotonic() < end_s:
            pass
        time.sleep(max(0.0, _PERIOD_S - ms / 1e3))


def _compute_in_calls(ms: float) -> None:
    began_s = time.thread_time()
    sum(range(1_000_000))
    numbers = round(1_000_000 * ms / 1e3 / (time.thread_time() - began_s))
    while True:
        sum(range(numbers))
        time.sleep(max(0.0, _PERIOD_S - ms / 1e3))
