"""How busy the hosts of a run are, as the runtime samples it beside the spans.

Hosts of simulated jobs have cores enough: what the network does behind the training costs nobody a core.  Ranks that are starved
of one lack it although others are free, as in a container with a limit.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tlkit.timeline.vocabulary import HOST_CORES, HOST_CPU, PROCESS_CPU

from .recording import RankRecording

#: The runtime samples so often.
SAMPLED_EVERY_NS: Final = 1_000_000_000
#: At most this share of a host is busy.
MAX_BUSY_SHARE: Final = 1 / 8
_WORKER: Final = 10


class Sample(NamedTuple):
    """A counter at a moment of true time."""

    name: str
    at_ns: int
    value: float


def host_samples(ranks: Sequence[RankRecording]) -> list[list[Sample]]:
    """Of the ranks of one host: its counters are the first one's."""
    end_ns = max(rank.steps[-1][1] for rank in ranks)
    own = [_counted(rank, "cpu_ns") / end_ns for rank in ranks]
    others = sum(_counted(rank, "starved_ns") + _in_workers(rank) for rank in ranks) / end_ns
    busy = sum(own) + others
    cores = 1
    while cores * MAX_BUSY_SHARE < busy:
        cores *= 2
    of_host = {HOST_CPU: 100 * busy / cores, HOST_CORES: float(cores)}
    return [
        [
            Sample(name, at_ns, value)
            for at_ns in range(SAMPLED_EVERY_NS // 2, end_ns, SAMPLED_EVERY_NS)
            for name, value in ({PROCESS_CPU: 100 * used} | (of_host if number == 0 else {})).items()
        ]
        for number, used in enumerate(own)
    ]


def _counted(rank: RankRecording, what: str) -> float:
    """Sum of the counters of all phases (ns)."""
    return sum(value for name, _, value in rank.counters if name.endswith(f" {what}"))


def _in_workers(rank: RankRecording) -> int:
    """What the loader's workers spend on batches (ns)."""
    return sum(span.end_ns - span.start_ns for span in rank.spans if span.name == "DATA_FETCH" and span.tid >= _WORKER)
